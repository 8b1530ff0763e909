"""One frame for every golden file.

`python -m tests.protocol.examples` rewrites the files. Do so after appending a field, or for a new protocol version.
When a field is appended, the diff may only lengthen frames.
"""

from pathlib import Path

from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import encode
from protocol.commands import (
    Cancel,
    Command,
    Drain,
    LoadAdapter,
    ReadRows,
    Stop,
    Submit,
    Tokenize,
    UnloadAdapter,
    Welcome,
    WriteRows,
)
from protocol.errors import ByeReason, ErrorCode
from protocol.events import (
    AdapterChanged,
    Bye,
    Capabilities,
    Delta,
    Event,
    Failed,
    Finished,
    Gauges,
    Heartbeat,
    HeldPrefix,
    Hello,
    Loading,
    Logprobs,
    PromptLogprobs,
    PromptToken,
    Ready,
    ReasoningSegment,
    Rows,
    RowsWritten,
    SharedTier,
    StartedStream,
    Step,
    TextSegment,
    Tokenized,
    TokenLogprob,
    ToolCallSegment,
    Usage,
)
from protocol.request import (
    Bias,
    ChatInput,
    EmbeddedInput,
    EmbeddingRows,
    Grammar,
    Image,
    ImagePlace,
    InfillInput,
    Limits,
    Message,
    PairInput,
    Pin,
    Pooled,
    Sampling,
    TemplateOptions,
    TextInput,
    TokensInput,
    ToolCall,
    ToolChoice,
)

GOLDEN = Path(__file__).parent / "golden"
GAUGES = Gauges(3, 2, 640, 1000, 1, 900, 4096, 2700, 12, 9, 31, 320, 4, 512, 77, 1)
LOGPROBS = Logprobs(
    TokenLogprob(12, -0.25, b" Paris"), (TokenLogprob(12, -0.25, b" Paris"), TokenLogprob(9, -9999.0, b"\xf0\x9f"))
)

ADAPTER = "00112233445566778899aabbccddeeff"
COMMANDS: dict[str, Command] = {
    "welcome": Welcome(7),
    "welcome_refused": Welcome(7, "protocol 2 is not spoken here"),
    "submit_text": Submit(1, "cmpl-1", TextInput("The capital of France is"), Sampling(), Limits()),
    "submit_tokens": Submit(
        2,
        "cmpl-2",
        TokensInput((0, 5, 300, 151935)),
        Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=1234567890123),
        Limits(max_tokens=16, stop=("\n\n", "é"), ignore_eos=True, deadline_ms=30_000),
        resume=(17, 18),
        tenant="team-a",
    ),
    "submit_allowed": Submit(4, "cmpl-4", TokensInput((1,)), Sampling(allowed_tokens=(7, 50256)), Limits()),
    "submit_sparse": Submit(
        4, "cmpl-4", TokensInput((1,)), Sampling(), Limits(sparse_prefill=True, sparse_keep=0.25), kept=(0, 32, 40, 48)
    ),
    "submit_without_drafts": Submit(4, "cmpl-4", TokensInput((1,)), Sampling(), Limits(speculate=False)),
    "submit_pooled": Submit(
        4,
        "embd-4",
        TextInput("a text"),
        Sampling(),
        Limits(max_tokens=0),
        pooled=Pooled(dimensions=256, normalize=False, truncate=512, special=False, prompt="query"),
    ),
    "submit_pair": Submit(
        4,
        "rerank-4",
        PairInput("a query", "a document"),
        Sampling(),
        Limits(max_tokens=0),
        pooled=Pooled("scores", instruction="Find the answer"),
    ),
    "submit_labels": Submit(
        4,
        "classify-4",
        TextInput("a text"),
        Sampling(),
        Limits(max_tokens=0),
        pooled=Pooled("scores", probabilities=True),
    ),
    "submit_suspect": Submit(4, "cmpl-4", TokensInput((1,)), Sampling(), Limits(), suspect=True),
    "submit_penalties": Submit(
        4,
        "cmpl-4",
        TokensInput((1,)),
        Sampling(
            presence_penalty=0.5,
            frequency_penalty=-0.25,
            repetition_penalty=1.125,
            logit_bias=(Bias(50256, -100.0), Bias(7, 1.5)),
            logprobs=2,
        ),
        Limits(min_tokens=3),
    ),
    "submit_chat": Submit(
        3,
        "chatcmpl-3",
        ChatInput(
            (Message("system", "Be brief."), Message("user", "Grüß dich 👋")), '[{"type":"function"}]', 1_763_703_600
        ),
        Sampling(),
        Limits(max_tokens=1),
    ),
    "submit_chat_options": Submit(
        5,
        "chatcmpl-5",
        ChatInput(
            (Message("user", "Hi", "anna"), Message("assistant", "")),
            now=1_763_703_600,
            options=TemplateOptions(True, False, 512, "low"),
        ),
        Sampling(),
        Limits(),
    ),
    "submit_chat_pins": Submit(
        8,
        "msg_8",
        ChatInput((Message("system", "Be brief."), Message("user", "Hi")), pins=(Pin(1, 300), Pin(1, 3600, 2))),
        Sampling(),
        Limits(),
    ),
    "submit_chat_images": Submit(
        9,
        "chatcmpl-9",
        ChatInput(
            (Message("user", "Which is larger?", images=(ImagePlace(0, 0), ImagePlace(1, 0))),),
            images=(
                Image("png", 2, 3, b"\x89PNG"),
                Image("jpeg", 640, 480, b"\xff\xd8", "low", "messages[0].content[1]"),
            ),
        ),
        Sampling(),
        Limits(),
    ),
    "submit_chat_tools": Submit(
        6,
        "chatcmpl-6",
        ChatInput(
            (
                Message("user", "Weather in Bern?"),
                Message(
                    "assistant", "", tool_calls=(ToolCall("call_1", "weather", '{"city":"Bern"}'),), reasoning="Hm."
                ),
                Message("tool", "12 C", tool_call_id="call_1"),
            ),
            '[{"type":"function","function":{"name":"weather"}}]',
            tool_choice=ToolChoice("required", "weather", False),
            parse_tools=True,
            parse_reasoning=True,
        ),
        Sampling(),
        Limits(stop_ids=(2,), keep_stop=True, reasoning_tokens=64),
    ),
    "submit_grammar": Submit(
        7,
        "cmpl-7",
        TextInput("Answer:"),
        Sampling(
            typical_p=0.5,
            xtc_probability=0.25,
            xtc_threshold=0.125,
            dry_multiplier=0.5,
            dry_base=2.0,
            dry_allowed_length=3,
            dry_range=64,
            dry_breakers=("\n",),
            bad_words=("no",),
        ),
        Limits(),
        grammar=Grammar("json_schema", '{"type":"object"}', "response_format"),
        unset=("temperature", "top_p"),
    ),
    "submit_images": Submit(
        8,
        "chatcmpl-8",
        ChatInput(
            (Message("user", "What is in ?", images=(ImagePlace(0, 11),)),),
            images=(Image("png", 640, 480, b"\x89PNG", "low", "messages[0].content[1].image_url", bytes(range(16))),),
        ),
        Sampling(),
        Limits(),
    ),
    "submit_infill": Submit(
        8, "cmpl-8", InfillInput("def f(x):\n", "\n    return y"), Sampling(), Limits(max_tokens=0), prompt_logprobs=2
    ),
    "submit_embedded": Submit(
        8,
        "cmpl-8",
        EmbeddedInput((TokensInput((1, 2)), EmbeddingRows("bfloat16", 2, b"\x80\x3f\x00\xbf"))),
        Sampling(),
        Limits(),
    ),
    "submit_urgent": Submit(
        9,
        "cmpl-9",
        TextInput("Now"),
        Sampling(),
        Limits(queue_ms=1500),
        priority_class="high",
        priority=-7,
    ),
    "tokenize": Tokenize(8, "req-8", TextInput("Hello"), "tokens", False),
    "tokenize_count": Tokenize(9, "req-9", ChatInput((Message("user", "Hi"),))),
    "cancel": Cancel(3),
    "drain": Drain(30_000),
    "read": ReadRows(10, 1 << 60, 3, 128, 64),
    "write": WriteRows(11, 1 << 60, "team-a", 128, (9906, 13), b"\x00\x01\x02\x03", bytes(range(16))),
    "write_image": WriteRows(11, 1 << 60, "team-a", 128, (13, -1, -(1 << 62)), b"\x00\x01\x02\x03", bytes(range(16))),
    "read_state": ReadRows(10, 1 << 60, 3, 4096, 64, state=True),
    "load": LoadAdapter(
        12, "sql@00112233445566778899aabbccddeeff", 3, ("/tmp/a", "/srv/sql"), "00112233445566778899aabb"
    ),
    "unload": UnloadAdapter(13, "sql@00112233445566778899aabbccddeeff"),
    "write_state": WriteRows(11, 1 << 60, "team-a", 4096, (), b"\x00\x01\x02\x03", bytes(range(16)), 640),
    "stop": Stop(),
}

EVENTS: dict[str, Event] = {
    "hello": Hello(
        PROTOCOL_VERSION,
        "w0",
        7,
        4242,
        "baton-tiny",
        "iree",
        "local-task",
        8,
        4096,
        "9f86d081884c7d65",
        "60303ae22b998861",
    ),
    "hello_context": Hello(
        PROTOCOL_VERSION, "w0", 7, 4242, "m", "iree", "cuda", 8, 4096, model_context=131_072, context_bound="device"
    ),
    "hello_gateways": Hello(PROTOCOL_VERSION, "w0", 0, 4242, "m", "iree", "cuda", 8, 4096, gateways=2),
    "hello_prefill": Hello(PROTOCOL_VERSION, "w0", 7, 4242, "m", "iree", "cuda", 8, 4096, phases="prefill"),
    "hello_enrolling": Hello(PROTOCOL_VERSION, "w", 0, 4242, "m", "iree", "cuda", 8, 4096, key="5c" * 32),
    "hello_adapted": Hello(PROTOCOL_VERSION, "w0", 7, 4242, "m", "mlx", "gpu", 8, 4096, adapter="support"),
    "loading": Loading("compile", 2, 7),
    "ready": Ready(Capabilities(chat=True, prompt_logprobs=True, grammar=True, infill=True), 2150, "local-task", 96),
    "ready_rows": Ready(Capabilities(), rows_format="iree-5f2a", row_bytes=24_576),
    "ready_tier": Ready(
        Capabilities(), rows_format="iree-5f2a", row_bytes=24_576, tier=SharedTier("5c" * 16, 40_000, 32)
    ),
    "ready_formats": Ready(Capabilities(chat=True, logprobs=True, tools=True, reasoning=True)),
    "ready_mtp": Ready(Capabilities(chat=True, mtp=True)),
    "ready_images": Ready(Capabilities(chat=True, images=True)),
    "ready_decoder_scores": Ready(Capabilities(generates=False, labels=1, pairs=True, decoder_scores=True)),
    "ready_labels": Ready(Capabilities(generates=False, labels=2, pairs=True, label_names=("ham", "spam"))),
    "ready_pooling": Ready(
        Capabilities(generates=False, vector_width=1024, pooling_prompts=("document", "query"), labels=1, pairs=True)
    ),
    "step": Step((Delta(1, (12,), " Paris"), Delta(2, (7, 8))), GAUGES),
    "step_logprobs": Step((Delta(1, (12,), " Paris", (LOGPROBS,)),), GAUGES),
    "step_segments": Step(
        (
            Delta(1, (12,), segments=(ReasoningSegment("Hm."), TextSegment("Hi"))),
            Delta(2, (7,), segments=(ToolCallSegment(0, "weather", '{"city"'),)),
        ),
        GAUGES,
    ),
    "step_started": Step(
        (Delta(1, (12,), " Paris"),), GAUGES, (StartedStream(1, 150, 2000, 31000, 40, 32), StartedStream(2))
    ),
    "step_pinned": Step((Delta(1, (12,)),), GAUGES, (StartedStream(1, prompt_tokens=500, created_tokens=448),)),
    "step_restored": Step((Delta(1, (12,)),), GAUGES, (StartedStream(1, 150, 2000, 9000, 400, 352, 320),)),
    "step_idle": Step(()),
    "step_prefixes": Step((), GAUGES, prefixes=(HeldPrefix(3, 240, (1, (1 << 63) - 1)), HeldPrefix(4))),
    "prompt_logprobs": PromptLogprobs(
        1,
        0,
        (
            PromptToken(9906, b"Hello"),
            PromptToken(13, b".", -0.5, (TokenLogprob(13, -0.5, b"."), TokenLogprob(0, -1.25, b"!"))),
        ),
    ),
    "finished_stop": Finished(1, "stop", Usage(5, 3), stop="\n\n"),
    "finished_stop_token": Finished(1, "stop", Usage(5, 3), stop=13),
    "finished": Finished(1, "stop", Usage(5, 3, 1, 20, 300, 4), (13, 2), "."),
    "finished_pinned": Finished(1, "stop", Usage(500, 3, created_tokens=448)),
    "finished_reasoned": Finished(1, "stop", Usage(5, 30, reasoning_tokens=21)),
    "finished_vector": Finished(1, "stop", Usage(5, 0), vector=b"\x00\x00\x80?\x00\x00\x00\xbf"),
    "finished_tool_calls": Finished(1, "tool_calls", Usage(5, 3), segments=(ToolCallSegment(0, arguments="}"),)),
    "failed": Failed(2, ErrorCode.INVALID, "top_k must be at least 0", "top_k", 7),
    "tokenized": Tokenized(8, 2, (9906, 13)),
    "tokenized_text": Tokenized(9, text="<|im_start|>user\nHi"),
    "tokenized_failed": Tokenized(9, text="no chat template", code=ErrorCode.UNSUPPORTED, field="messages"),
    "rows": Rows(10, 640, (9906, 13), b"\x00\x01\x02\x03", bytes(range(16))),
    "rows_image": Rows(10, 640, (13, -1, -(1 << 62)), b"\x00\x01\x02\x03", bytes(range(16))),
    "rows_state": Rows(10, 640, (), b"\x00\x01\x02\x03", bytes(range(16)), 8192),
    "rows_none": Rows(10),
    "written": RowsWritten(11, 130),
    "adapter": AdapterChanged(12),
    "adapter_refused": AdapterChanged(12, "adapter_config.json: r: 128 is more than max_lora_rank, 64"),
    "written_refused": RowsWritten(11, text="3 sequences wait"),
    "beat": Heartbeat(GAUGES),
    "beat_prefixes": Heartbeat(GAUGES, (HeldPrefix(0, 41, (77,)),)),
    "beat_malformed_calls": Heartbeat(Gauges(malformed_calls=2)),
    "beat_others": Heartbeat(Gauges(others=5)),
    "beat_preemptions": Heartbeat(Gauges(preemptions=3)),
    "beat_stored": Heartbeat(Gauges(stored_hits=2, stored_tokens=96, stored_bytes=1 << 20, stored_failures=1)),
    "beat_drafts": Heartbeat(Gauges(drafts=4, draft_tokens=20, accepted_tokens=11)),
    "beat_states": Heartbeat(Gauges(state_cache_bytes=1 << 20, state_cache_hits=3, state_cache_evictions=2)),
    "bye": Bye(ByeReason.STEPS_FAILED, "10 steps in a row failed"),
}

FRAMES: dict[str, Command | Event] = {**COMMANDS, **EVENTS}


def hex_lines(frame: bytes) -> str:
    """Sixteen bytes a line, so that a change reads as a small diff."""
    return "".join(frame[at : at + 16].hex(" ") + "\n" for at in range(0, len(frame), 16))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, frame in FRAMES.items():
        (GOLDEN / f"{name}.hex").write_text(hex_lines(encode(frame)))
