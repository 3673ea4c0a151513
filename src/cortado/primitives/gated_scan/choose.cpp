#include "cortado/primitives/gated_scan/choose.h"

#include "cortado/primitives/gated_scan/on_cpu.h"

namespace cortado::gated {

FormOutputs compute_form(FormInputs in, const FormOptions& options, double factor, const std::vector<int64_t>* bounds) {
  if (kernel_takes(in, options)) return differentiate_by_kernel(in, options, factor, bounds);
  Tensor& given = options.want_y ? in.w : in.y;
  if (given.defined()) {
    given = given.to(options.type) * factor;
  } else {
    given = at::zeros({1}, in.x.options().dtype(options.type))
                .expand({in.x.size(0), in.x.size(1), options.heads, (options.want_y ? in.v : in.x).size(3)});
  }
  return bounds ? differentiate_sequences(in, options, *bounds) : differentiate_form(in, options);
}

}  // namespace cortado::gated
