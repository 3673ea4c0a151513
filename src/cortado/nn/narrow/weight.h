// Matrices of a model that are kept in fewer bits than its activations have, for inference.
#pragma once

#include <string>

#include "cortado/nn/narrow/kernel.h"
#include "cortado/primitives/types.h"

namespace cortado {

// What a model's matrices are kept in: the activations' type, or less. kInt4: of 4 bits; a model keeps its
// vocabulary's matrices in 8.
enum class WeightFormat { kPlain, kBFloat16, kFloat16, kInt8, kInt4 };

// "bfloat16", "float16", "int8", "int4"; InputError for others.
WeightFormat weight_format_of(const std::string& name);
const std::vector<std::string>& weight_format_names();
std::string weight_format_name(WeightFormat format);  // of kPlain: "plain"

// A matrix [out, in] as integers: of 8 bits with a scale for every 64 inputs of an output, 8.5 bits a weight; or of 4 with
// a scale and a least number for every 32, 5 bits a weight, as ggml's Q4_1 has them, whose numbers stay what they are.
// Products round their other factor to 8 bits, row by row: a row's result does not depend on the rows beside it.
class NarrowWeight {
 public:
  NarrowWeight(int bits, int64_t out, int64_t in);  // not yet filled

  // From a matrix of its shape and any floating type; of 4 bits of numbers up to 65504.
  void pack(const Tensor& weight);

  // x [..., in] -> [..., out] in x's type. No derivative: InputError where one is asked for.
  Tensor multiply(const Tensor& x, const OptionalTensor& bias) const;
  // The same by several matrices of one x, which is rounded once. Null biases: none.
  static std::vector<Tensor> multiply(const Tensor& x, const std::vector<const NarrowWeight*>& weights,
                                      const std::vector<OptionalTensor>& biases);
  // The rows that int64 indices [...] name: [..., in].
  Tensor rows(const Tensor& indices, at::ScalarType type) const;

  Tensor unpacked() const;  // float32 [out, in]
  int64_t bytes() const { return static_cast<int64_t>(values_.nbytes() + scales_.nbytes() + besides_.nbytes()); }

 private:
  narrow::Matrix matrix() const;
  Tensor multiply_by_definition(const Tensor& x, const OptionalTensor& bias) const;
  void pack_int4(const Tensor& rows, int64_t block);
  Tensor unpack_int4(const Tensor& indices) const;

  int bits_;
  int64_t out_, in_;
  Tensor values_;   // bytes; narrow::Matrix says how they lie
  Tensor scales_;   // [blocks, groups, kColumns] bfloat16, of 4 bits float16
  Tensor besides_;  // likewise int16, of 4 bits float16
};

// x Wᵀ + b of float32 x and a W of 16-bit floating point, on the CPU; sums are of float32.
Tensor short_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);

// While one lives, products of this thread with up to 64 rows are computed row by row in the same order of operations,
// whatever the number of rows: what a sequence is told does not depend on those that are computed beside it. For more
// than a few rows that costs time (torch's products share what they load between rows).
class RowsApart {
 public:
  RowsApart();
  ~RowsApart();
  RowsApart(const RowsApart&) = delete;
  RowsApart& operator=(const RowsApart&) = delete;

 private:
  bool before_;
};

// The same of a few rows, W of float32 too: one call where torch makes seven. It does not take many rows, what will be
// differentiated, other types, devices and layouts.
bool few_rows_linear_takes(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);
Tensor few_rows_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);

}  // namespace cortado
