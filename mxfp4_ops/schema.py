"""The operators' schemas: the one place where their signatures are written down."""

NAMESPACE = "mxfp4"

SCHEMAS: dict[str, str] = {
    "quant_mm": (
        "quant_mm(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias=None, *, "
        'ScalarType? out_dtype=None, bool shuffled=False, str scale_mode="even") -> Tensor'
    ),
    "mm": (
        "mm(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, Tensor? bias=None, *, "
        "ScalarType out_dtype=bfloat16, bool shuffled=False) -> Tensor"
    ),
    "mm_a16": (
        "mm_a16(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias=None, *, "
        "ScalarType? out_dtype=None, bool shuffled=False) -> Tensor"
    ),
    "grouped_quant_mm": (
        "grouped_quant_mm(Tensor x, Tensor weight, Tensor weight_scale, Tensor offsets, "
        'Tensor? bias=None, *, ScalarType? out_dtype=None, str scale_mode="even") -> Tensor'
    ),
    "quantize": 'quantize(Tensor x, *, str scale_mode="even") -> (Tensor, Tensor)',
    "dequantize": ("dequantize(Tensor q, Tensor scale, *, ScalarType dtype=bfloat16) -> Tensor"),
    "shuffle": "shuffle(Tensor weight, Tensor weight_scale) -> (Tensor, Tensor)",
    "unshuffle": (
        "unshuffle(Tensor weight, Tensor weight_scale, int n, int k) -> (Tensor, Tensor)"
    ),
}

GROUPED_FLOAT_MM = (
    "grouped_float_mm(Tensor x, Tensor weight, Tensor weight_scale, Tensor offsets, "
    "bool transposed) -> Tensor"
)
"""A step of a backward pass, not for users."""
