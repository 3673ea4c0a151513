// What modules with one large matrix have in common: what it is kept in.
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

  // For inference, once there is nothing left to train. The values are converted, or, if they are still to be read,
  // only room is made for them: what they had before is then never touched. Of 8 or 4 bits `weight` is only a
  // shape afterwards, a meta tensor.
  void set_format(WeightFormat format, bool keep_values);

  // The matrix as it is now kept, from one of its shape and any floating type.
  void assign(const Tensor& values);

  const std::shared_ptr<NarrowWeight>& packed() const { return packed_; }
  int64_t weight_bytes() const { return packed_ ? packed_->bytes() : static_cast<int64_t>(weight.nbytes()); }

  // What computes in this module's place, as long as it is set (Python's own module, models/part.h): a linear map's product
  // with its bias, an embedding's rows.
  using Instead = std::function<Tensor(const Tensor&)>;
  void compute_by(Instead instead) { instead_ = std::move(instead); }
  const Instead& instead() const { return instead_; }

  Tensor weight;

 protected:
  // x Wᵀ + b
  Tensor multiply(const Tensor& x, const OptionalTensor& bias) const;

 private:
  std::shared_ptr<NarrowWeight> packed_;
  Instead instead_;
};

}  // namespace cortado
