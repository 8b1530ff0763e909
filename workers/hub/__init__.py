"""Models of the Hugging Face hub and its cache on this machine, by `huggingface_hub` and as its variables set them:
HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE."""
