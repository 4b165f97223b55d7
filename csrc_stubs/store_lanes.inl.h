// The first lanes of a vector type V, for those that cannot store a part of a vector. Included after the
// target pragma, inside of the namespace of V.

template <class V>
void store_lanes(void* data, mxfp4::Float type, int64_t at, typename V::Float v, int64_t count) {
  if (count < V::width) {
    float values[V::width];
    V::template store<mxfp4::Float::f32>(values, 0, v);
    for (int64_t i = 0; i < count; ++i) mxfp4::store(data, type, at + i, values[i]);
    return;
  }
  switch (type) {
    case mxfp4::Float::bf16: return V::template store<mxfp4::Float::bf16>(data, at, v);
    case mxfp4::Float::f16: return V::template store<mxfp4::Float::f16>(data, at, v);
    default: return V::template store<mxfp4::Float::f32>(data, at, v);
  }
}
