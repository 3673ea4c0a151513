// Base of modules with one large matrix: holds the matrix and the format that it is stored in.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cortado/nn/initialization.h"
#include "cortado/nn/module.h"
#include "cortado/nn/narrow/weight.h"

namespace cortado {

// A module whose parameter "weight" is a matrix [out, in].
class MatrixModule : public Module {
 public:
  MatrixModule(std::string name, int64_t out, int64_t in, Role role);

  // Stores the matrix in another format, for inference only. The values are converted, or, if they are still to be read
  // from a file, only memory is allocated and the old values are never touched. With 8 or 4 bits `weight` becomes a
  // meta tensor that only has the shape.
  void set_format(WeightFormat format, bool keep_values);

  // Sets the matrix, in its current format, from one of equal shape and any floating-point type.
  void assign(const Tensor& values);

  const std::shared_ptr<NarrowWeight>& packed() const { return packed_; }
  int64_t weight_bytes() const { return packed_ ? packed_->bytes() : static_cast<int64_t>(weight.nbytes()); }

  // A function that computes in place of this module while it is set (Python's own module, models/part.h): a linear
  // map's product with its bias, or an embedding's rows.
  using Instead = std::function<Tensor(const Tensor&)>;
  void compute_by(Instead instead) { instead_ = std::move(instead); }
  const Instead& instead() const { return instead_; }

  Tensor weight;

 protected:
  // x Wᵀ + b.
  Tensor multiply(const Tensor& x, const OptionalTensor& bias) const;

 private:
  std::shared_ptr<NarrowWeight> packed_;
  Instead instead_;
};

}  // namespace cortado
