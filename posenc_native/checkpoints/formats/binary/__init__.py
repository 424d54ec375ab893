"""File formats that are neither JSON nor YAML: GGUF and ONNX."""
