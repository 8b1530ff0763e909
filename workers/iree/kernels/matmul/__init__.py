"""Matrix products with packed weights, plain and quantized."""
