#include <algorithm>

#include "cortado/analyze/analyze.h"
#include "cortado/base/error.h"

namespace cortado {

std::vector<LayerReading> read_layers(const Reading& reading) {
  const auto& config = reading.model.config();
  const auto count = static_cast<int64_t>(reading.model.mixers().size());
  for (const int64_t layer : reading.layers) {
    fail_input_if(layer < 0 || layer >= count, "[--layers] the model's layers are 0 to ", count - 1, ", there is no ",
                  layer);
  }
  std::vector<LayerReading> found;
  const at::NoGradGuard no_grad;
  reading.model.walk(reading.tokens, [&](int64_t layer, const at::Tensor& x) {
    Mixer& mixer = *reading.model.mixers()[size_t(layer)];
    const auto& wanted = reading.layers;
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), layer) != wanted.end()) {
      const Json& settings = config.layers[size_t(layer)];
      found.push_back({layer, mixer, x.detach(), settings.value("heads", config.heads)});
    }
    return mixer.forward(x, Batch{}, nullptr);
  });
  return found;
}

std::vector<std::vector<double>> rows_of(const at::Tensor& matrix) {
  const at::Tensor given = matrix.to(at::kCPU, at::kDouble).contiguous();
  std::vector<std::vector<double>> rows;
  for (int64_t i = 0; i < given.size(0); ++i) {
    const double* row = given.const_data_ptr<double>() + i * given.size(1);
    rows.emplace_back(row, row + given.size(1));
  }
  return rows;
}

}  // namespace cortado
