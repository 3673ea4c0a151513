// Model matrices stored in fewer bits than the activations, for inference.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cortado/nn/narrow/kernel.h"
#include "cortado/primitives/types.h"

namespace cortado {

// The storage of a model's matrices: in the activations' type (kPlain), or smaller. With kInt4 the vocabulary's
// matrices are kept in 8 bits.
// kWords: int8, or 6 bits for a matrix whose numbers came from ggml's Q6_K; only for the vocabulary's matrices.
enum class WeightFormat { kPlain, kBFloat16, kFloat16, kInt8, kInt4, kWords };

// Converts between names and formats: "bfloat16", "float16", "int8", "int4". InputError for other names.
WeightFormat weight_format_of(const std::string& name);
const std::vector<std::string>& weight_format_names();
std::string weight_format_name(WeightFormat format);  // kPlain: "plain"
// 8 or 4 bits (or 6).
constexpr bool is_narrow(WeightFormat format) {
  return format == WeightFormat::kInt8 || format == WeightFormat::kInt4 || format == WeightFormat::kWords;
}

// A matrix [out, in] of integers. 8 bits: one scale per 64 inputs of an output, 8.5 bits per weight. 4 bits: one scale
// and one least number per 32, 5 bits per weight, in the format of ggml's Q4_1, whose values are kept exactly. A matrix
// whose values all came from ggml's Q4_0 needs no least numbers: 4.5 bits per weight. Products round the other factor to
// 8 bits, row by row: a row's result does not depend on the other rows.
class NarrowWeight {
 public:
  // Uninitialised. `or_six`: pack() and assemble() may choose 6 bits, 6.6 per weight, instead of 8.
  NarrowWeight(int bits, int64_t out, int64_t in, bool or_six = false);

  // Converts a matrix of equal shape and any floating-point type; 4 bits: of numbers up to 65504.
  void pack(const Tensor& weight);

  // x [..., in] -> [..., out] in x's type. InputError if a derivative is asked for.
  Tensor multiply(const Tensor& x, const OptionalTensor& bias) const;
  // The products of one x with several matrices; x is rounded once. Null biases: none.
  static std::vector<Tensor> multiply(const Tensor& x, const std::vector<const NarrowWeight*>& weights,
                                      const std::vector<OptionalTensor>& biases);
  // Returns the rows selected by int64 indices [...], as [..., in].
  Tensor rows(const Tensor& indices, at::ScalarType type) const;

  Tensor unpacked() const;  // float32 [out, in]
  // The packed matrix as "values", "scales" and, if it has them, "offsets", for a file; and a matrix of equal shape made
  // of these, which are not copied. InputError: they are another matrix's.
  std::vector<std::pair<std::string, Tensor>> parts() const;
  void assemble(const std::map<std::string, Tensor>& parts);
  int64_t bytes() const {
    return static_cast<int64_t>(values_.nbytes() + scales_.nbytes() + (offsets_.defined() ? offsets_.nbytes() : 0));
  }

 private:
  narrow::Matrix matrix() const;
  Tensor multiply_by_definition(const Tensor& x, const OptionalTensor& bias) const;
  void pack_int4(const Tensor& rows, int64_t block);
  void make_room(int bits);
  bool pack_six(const Tensor& weight);
  Tensor unpack_int4(const Tensor& indices) const;

  int bits_;
  bool or_six_;
  int64_t out_, in_;
  Tensor values_;  // bytes, laid out as narrow::Matrix says
  Tensor scales_;  // [blocks, groups, kColumns]; 8 bits: bfloat16, 6 bits: int8, 4 bits: float16
  // As scales_; 8 bits: int16; 6 bits: float16 [blocks, in / 256, kColumns]; 4 bits: float16, or undefined: least number
  // -8 scale.
  Tensor offsets_;
};

// x Wᵀ + b for float32 x and W in 16-bit floating point, on the CPU; sums are float32.
Tensor short_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);

// While an object lives, this thread computes products with up to 64 rows row by row in one order of operations,
// whatever the number of rows: a sequence's results do not depend on the sequences computed beside it. For more than a
// few rows this costs time (torch's products share loads between rows).
class RowsApart {
 public:
  RowsApart();
  ~RowsApart();
  RowsApart(const RowsApart&) = delete;
  RowsApart& operator=(const RowsApart&) = delete;

 private:
  bool before_;
};

// x Wᵀ + b for a few rows, also for W in float32: one call where torch makes seven. few_rows_linear_takes is false for
// many rows, for calls that will be differentiated, and for other types, devices and layouts.
bool few_rows_linear_takes(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);
Tensor few_rows_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);

}  // namespace cortado
