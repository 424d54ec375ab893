"""Files that are neither JSON nor YAML: GGUF and ONNX."""
