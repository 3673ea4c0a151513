#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "cortado/analyze/analyze.h"
#include "cortado/base/chart.h"
#include "cortado/base/error.h"
#include "cortado/base/human.h"

namespace cortado {
namespace {

struct Gram {
  std::string kernel;
  int64_t n, d;
  at::Tensor matrix;
};

// Returns exp(x'y) and (x'y)^p for n vectors of i.i.d. normal entries with standard deviation d^-1/4, so x'y has
// variance 1.
std::vector<Gram> random_grams(const SpectrumOptions& options) {
  std::vector<Gram> grams;
  for (const int64_t n : options.n) {
    for (const int64_t d : options.d) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t(options.seed));
      const at::Tensor x = at::randn({n, d}, generator, at::kDouble) * std::pow(double(d), -0.25);
      const at::Tensor products = at::matmul(x, x.t());
      grams.push_back({"exp(x'y)", n, d, products.exp()});
      for (const int64_t power : options.powers) {
        grams.push_back({concat("(x'y)^", power), n, d, products.pow(power)});
      }
    }
  }
  return grams;
}

// Returns phi(k_i)'phi(k_j) for the keys of a text, for layers with a feature map.
std::vector<Gram> trained_grams(const Reading& reading) {
  std::vector<Gram> grams;
  const at::NoGradGuard no_grad;
  for (const LayerReading& layer : read_layers(reading)) {
    const auto pairs = layer.mixer.stored_pairs(layer.x);
    if (!pairs) continue;
    for (int64_t head = 0; head < pairs->keys.size(1); ++head) {
      const at::Tensor phi = pairs->keys.select(1, head).to(at::kDouble);
      grams.push_back({concat("layer ", layer.layer, ", head ", head), phi.size(0), pairs->values.size(2),
                       at::matmul(phi, phi.t())});
    }
  }
  fail_input_if(grams.empty(), "[analyze] none of these layers maps its keys for a linear state");
  return grams;
}

LineChart::Series curve(const std::string& name, const at::Tensor& values, double unit) {
  LineChart::Series series{name, {}};
  for (int64_t i = 0; i < values.numel(); ++i) {
    series.points.emplace_back(double(i), values[i].item<double>() / unit);
  }
  return series;
}

// Returns the smallest rank whose least error is at most `share` of the total.
int64_t rank_for(const at::Tensor& least, double share) {
  const double whole = least[0].item<double>();
  int64_t rank = 0;
  while (rank + 1 < least.numel() && least[rank].item<double>() > share * whole) ++rank;
  return rank;
}

}  // namespace

at::Tensor least_errors(const at::Tensor& gram) {
  const at::Tensor squares = at::linalg_svdvals(gram.to(at::kDouble)).square();
  return at::cat({squares.flip(0).cumsum(0).flip(0), at::zeros({1}, squares.options())});
}

Finding analyze_spectrum(const SpectrumOptions& options) {
  Finding finding;
  LineChart values{.title = "Singular values of Gram matrices", .x_label = "number", .y_label = "singular value"};
  LineChart errors{.title = "Least squared error of a feature map", .x_label = "rank", .y_label = "share of ||G||²"};
  values.log_y = errors.log_y = true;
  Json rows = Json::array();
  for (const Gram& gram : options.reading ? trained_grams(*options.reading) : random_grams(options)) {
    const at::Tensor singular = at::linalg_svdvals(gram.matrix), least = least_errors(gram.matrix);
    const double whole = least[0].item<double>();
    const std::string name = options.reading ? gram.kernel : concat(gram.kernel, ", n ", gram.n, ", d ", gram.d);
    values.series.push_back(curve(name, singular, 1));
    errors.series.push_back(curve(name, least.narrow(0, 0, least.numel() - 1), whole));
    const int64_t features = std::min(2 * gram.d, least.numel() - 1);
    rows.push_back({{"kernel", gram.kernel},
                    {"n", gram.n},
                    {"d", gram.d},
                    {"rank_99", rank_for(least, 0.01)},
                    {"rank_9999", rank_for(least, 1e-4)},
                    {"error_2d", least[features].item<double>() / whole},
                    {"singular_values", rows_of(singular.unsqueeze(0))[0]},
                    {"least_errors", rows_of(least.unsqueeze(0))[0]}});
  }
  finding.json = {{"grams", rows}};
  finding.table = table_of(rows, {{"kernel", "/kernel"},
                                  {"n", "/n"},
                                  {"d", "/d"},
                                  {"rank for 1 %", "/rank_99"},
                                  {"for 0.01 %", "/rank_9999"},
                                  {"least error, rank 2d, %", "/error_2d", decimals(4, 0.01)}});
  finding.pictures = {{"singular-values", values.svg()}, {"least-errors", errors.svg()}};
  return finding;
}

}  // namespace cortado
