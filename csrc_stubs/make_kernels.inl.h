// The kernels of a vector type V together. Each instruction set's file includes them, inside of its own
// namespace and with its own target.

#include "convert.inl.h"
#include "product.inl.h"
#include "product_a16.inl.h"

template <class V, class AllRows = InVectors<V>>
constexpr Kernels make_kernels(const char* name) {
  return {name,
          AllRows::panels * V::width,
          InFloat<V>::panels * V::width,
          quantize<V>,
          dequantize<V>,
          prepare<V, (AllRows::tiles_from > 0)>,
          product<V, AllRows, Activations>,
          AllRows::tiles_from,
          widen<V>,
          product<V, InFloat<V>, FloatActivations>};
}
