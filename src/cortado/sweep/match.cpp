#include "cortado/sweep/match.h"

#include <cmath>
#include <limits>

#include "cortado/base/error.h"
#include "cortado/models/language_model.h"
#include "cortado/tasks/registry.h"

namespace cortado {
namespace {

int64_t tokens_of(const Json& config) {
  if (config.contains("task")) return open_task(config["task"], "task")->shape().length;
  return config.contains("training") ? config["training"].value("context", int64_t{256}) : 256;
}

}  // namespace

int64_t measured_size(Match match, const Json& config, const std::string& name) {
  Json complete = config;
  if (!complete.contains("vocabulary") && !complete.contains("input")) complete["vocabulary"] = 2;
  complete.erase("head");  // the same for all
  const LanguageModel model(ModelConfig::from_json(complete, name));
  return match == Match::kState ? model.state_bytes(tokens_of(config)) : model.parameter_count();
}

Json matched_size(Match match, const Json& config, const Json& sizes, int64_t target, const std::string& place) {
  const bool one =
      sizes.is_object() && sizes.size() == 1 && sizes.begin().value().is_array() && !sizes.begin().value().empty();
  fail_input_if(!one, "[", place, "] \"sizes\" must be one setting and a list of what it may be, as the sweep matches");
  const std::string key = sizes.begin().key();
  Json best;
  double least = std::numeric_limits<double>::infinity();
  for (const Json& value : sizes.begin().value()) {
    Json tried = config;
    apply_setting(tried, key + "=" + value.dump());
    const double off = std::abs(std::log(double(measured_size(match, tried, place)) / double(target)));
    if (off < least) {
      least = off;
      best = {{key, value}};
    }
  }
  return best;
}

}  // namespace cortado
