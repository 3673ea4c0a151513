#include "cortado/nn/matrix.h"

#include "cortado/base/error.h"
#include "cortado/nn/linear/op.h"

namespace cortado {

MatrixModule::MatrixModule(std::string name, int64_t out, int64_t in, Role role) : Module(std::move(name)) {
  register_parameter(weight, "weight", at::empty({out, in}), role);
  lecun_normal(weight, in);
}

void MatrixModule::set_format(WeightFormat format, bool keep_values) {
  fail_input_if(packed_ != nullptr, "[weights] weights of 8 or 4 bits cannot be changed any more");
  if (format == WeightFormat::kPlain) return;
  const at::NoGradGuard no_grad;
  if (is_narrow(format)) {
    fail_input_if(!weight.is_cpu(), "[weights] weights of 8 and 4 bits are for the CPU, the model is on ",
                  weight.device());
    auto packed = std::make_shared<NarrowWeight>(format == WeightFormat::kInt4 ? 4 : 8, weight.size(0), weight.size(1),
                                                 /*or_six=*/format == WeightFormat::kWords);
    if (keep_values) packed->pack(weight);
    packed_ = std::move(packed);
    weight = at::empty(weight.sizes(), weight.options().device(at::kMeta));
  } else {
    const auto type = format == WeightFormat::kBFloat16 ? at::kBFloat16 : at::kHalf;
    weight = keep_values ? weight.detach().to(type) : at::empty(weight.sizes(), weight.options().dtype(type));
  }
  parameters_["weight"] = weight;
}

void MatrixModule::assign(const Tensor& values) {
  if (packed_) return packed_->pack(values);
  weight.copy_(values);
}

Tensor MatrixModule::multiply(const Tensor& x, const OptionalTensor& bias) const {
  return packed_ ? packed_->multiply(x, bias) : linear_map(x, weight, bias);
}

}  // namespace cortado
