"""Settings of programs that serve: vLLM, SGLang, TensorRT-LLM."""
