#include <algorithm>

#include "cortado/analyze/analyze.h"
#include "cortado/base/chart.h"
#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/memory.h"
#include "cortado/base/stopwatch.h"

namespace cortado {
namespace {

constexpr int64_t kDecodedTokens = 16;  // a round's time per token is the mean over these

struct Measured {
  std::vector<double> seconds;
  int64_t bytes = 0;  // peak resident memory beyond the level before; the largest of the rounds
};

void take(Measured& measured, const std::function<void()>& work, double share = 1) {
  const int64_t before = resident_bytes();
  reset_peak_resident_bytes();
  measured.seconds.push_back(seconds_of(work) * share);
  measured.bytes = std::max(measured.bytes, peak_resident_bytes() - before);
}

class Contestant {
 public:
  Contestant(std::string name, const Json& config, int64_t length, int64_t batch)
      : name_(std::move(name)), model_(ModelConfig::from_json(config, name_)), length_(length) {
    if (!model_.config().causal) name_ += " (bidirectional)";
    tokens_ = at::randint(model_.config().vocabulary, {batch, length}, at::kLong);
    one_ = tokens_.narrow(0, 0, 1);
  }

  void forward(bool keep) {
    const auto work = [this] {
      const at::NoGradGuard no_grad;
      model_.hidden(tokens_);
    };
    keep ? take(forward_, work) : work();
  }

  void backward(bool keep) {
    const auto work = [this] {
      model_.hidden(tokens_).sum().backward();
      model_.zero_grad();
    };
    keep ? take(backward_, work) : work();
  }

  // Decodes after `length` tokens. Bidirectional models have no next token.
  void decode(bool keep) {
    if (!model_.config().causal) return;
    const at::NoGradGuard no_grad;
    if (!read_) {
      state_ = model_.zero_state(1);
      model_.hidden(one_, {}, &state_);
      read_ = true;
    }
    ModelState state = state_.clone();
    const at::Tensor next = one_.narrow(1, 0, 1);
    const auto work = [&] {
      for (int64_t i = 0; i < kDecodedTokens; ++i) model_.hidden(next, {}, &state);
    };
    keep ? take(decode_, work, 1.0 / double(kDecodedTokens)) : work();
  }

  void add_rows(Json& rows) const {
    for (const auto& [what, measured] : {std::pair{"forward", &forward_}, std::pair{"with backward", &backward_},
                                         std::pair{"decoded token", &decode_}}) {
      if (measured->seconds.empty()) continue;
      auto sorted = measured->seconds;
      std::sort(sorted.begin(), sorted.end());
      rows.push_back({{"mixer", name_},
                      {"parameters", model_.parameter_count()},
                      {"pass", what},
                      {"tokens", length_},
                      {"sequences", tokens_.size(0)},
                      {"seconds", median(sorted)},
                      {"low", sorted[sorted.size() / 4]},
                      {"high", sorted[sorted.size() - 1 - sorted.size() / 4]},
                      {"bytes", std::max<int64_t>(0, measured->bytes)}});
    }
  }

 private:
  std::string name_;
  LanguageModel model_;
  int64_t length_;
  at::Tensor tokens_, one_;
  Measured forward_, backward_, decode_;
  ModelState state_;
  bool read_ = false;
};

std::string milliseconds(const Json& seconds) { return fixed(1e3 * seconds.get<double>(), 2); }

LineChart chart_of(const Json& rows, const std::string& pass) {
  LineChart chart{.title = concat("Time of a pass: ", pass), .x_label = "tokens of a sequence", .y_label = "ms"};
  chart.log_x = chart.log_y = true;
  for (const Json& row : rows) {
    if (row["pass"] != pass) continue;
    const std::string name = row["mixer"];
    auto found = std::find_if(chart.series.begin(), chart.series.end(), [&](const auto& s) { return s.name == name; });
    if (found == chart.series.end()) found = chart.series.insert(found, {name, {}});
    found->points.emplace_back(row["tokens"].get<double>(), 1e3 * row["seconds"].get<double>());
  }
  return chart;
}

}  // namespace

Finding analyze_scaling(const ScalingOptions& options) {
  Finding finding;
  Json rows = Json::array();
  for (const int64_t length : options.lengths) {
    if (options.stop && options.stop()) break;
    const int64_t batch = options.sequences > 0 ? options.sequences : std::max<int64_t>(1, options.tokens / length);
    std::vector<std::unique_ptr<Contestant>> all;
    for (const auto& [name, config] : options.models) {
      all.push_back(std::make_unique<Contestant>(name, config, length, batch));
    }
    // Models take turns. The first round is a warm-up.
    for (int64_t round = 0; round <= options.rounds; ++round) {
      for (auto& one : all) {
        if (options.stop && options.stop()) break;
        one->forward(round > 0);
        if (options.backward) one->backward(round > 0);
        one->decode(round > 0);
        if (options.progress) options.progress(concat("T ", length, ", round ", round, " of ", options.rounds));
      }
    }
    for (const auto& one : all) one->add_rows(rows);
  }
  finding.json = {{"rows", rows}};
  finding.table = table_of(rows, {{"mixer", "/mixer"},
                                  {"pass", "/pass"},
                                  {"tokens", "/tokens"},
                                  {"sequences", "/sequences"},
                                  {"ms", "/seconds", milliseconds},
                                  {"quarter", "/low", milliseconds},
                                  {"three quarters", "/high", milliseconds},
                                  {"memory, MiB", "/bytes", decimals(1, 1048576)}});
  for (const auto& [name, pass] : {std::pair{"forward", "forward"}, std::pair{"backward", "with backward"},
                                   std::pair{"decode", "decoded token"}}) {
    finding.pictures.emplace_back(concat("scaling-", name), chart_of(rows, pass).svg());
  }
  return finding;
}

}  // namespace cortado
