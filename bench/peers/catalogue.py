"""The peers of `bench/peers/rivals.py` by the names that its options have."""

from collections.abc import Mapping

from bench.peers.ggml import IK_LLAMA_PEER, LLAMA_CPP_PEER
from bench.peers.onnxruntime_genai import OnnxRuntimePeer
from bench.peers.openvino_genai import OpenVinoPeer
from bench.peers.peer import Rival
from bench.peers.vllm_cpu import VllmPeer

PEERS: Mapping[str, Rival] = {
    "llama.cpp": LLAMA_CPP_PEER,
    "ik_llama.cpp": IK_LLAMA_PEER,
    "openvino": OpenVinoPeer(),
    "vllm": VllmPeer(),
    "onnxruntime": OnnxRuntimePeer(),
}
