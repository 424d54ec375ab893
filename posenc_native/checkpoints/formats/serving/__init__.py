"""Settings of inference servers: vLLM, SGLang, TensorRT-LLM."""
