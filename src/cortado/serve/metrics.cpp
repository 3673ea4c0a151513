#include "cortado/serve/metrics.h"

#include <algorithm>
#include <sstream>

namespace cortado {

namespace {

constexpr double kBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};

// The # HELP lines.
std::string help(const std::string& name) {
  static const std::map<std::string, std::string> kHelp = {
      {"cortado_requests_total", "HTTP requests by path and status"},
      {"cortado_failures_total", "answers that failed here, by path: the log has the reasons"},
      {"cortado_prompt_tokens_total", "tokens of prompts"},
      {"cortado_cached_tokens_total", "tokens of prompts that were not read again"},
      {"cortado_read_tokens_total", "tokens of prompts that were read"},
      {"cortado_written_tokens_total", "tokens of answers"},
      {"cortado_answers_total", "answers by how they ended"},
      {"cortado_steps_total", "turns that wrote a token of every answer"},
      {"cortado_time_to_first_token_seconds", "from the request to its first token"},
      {"cortado_time_per_token_seconds", "from a token to the next of the same answer"},
      {"cortado_request_seconds", "from the request to the end of its answer"},
      {"cortado_inspect_seconds", "texts that were inspected, until their answer was there"},
      {"cortado_waiting", "requests that wait"},
      {"cortado_reading", "prompts that are read"},
      {"cortado_writing", "answers that are written"},
      {"cortado_state_bytes", "states of the answers that are written"},
      {"cortado_cache_bytes", "the state cache"},
      {"cortado_cache_snapshots", "snapshots in the state cache"},
      {"cortado_cache_evicted_total", "snapshots that were dropped for room"},
  };
  const auto found = kHelp.find(name);
  return found == kHelp.end() ? name : found->second;
}

void head(std::ostream& out, const std::string& name, const char* type) {
  out << "# HELP " << name << " " << help(name) << "\n# TYPE " << name << " " << type << "\n";
}

bool ends_with_total(const std::string& name) { return name.ends_with("_total"); }

}  // namespace

Metrics::Metrics() {
  for (const char* kind : {"prompt", "cached", "read", "written"}) {
    counters_["cortado_" + std::string(kind) + "_tokens_total"][""] = 0;
  }
  counters_["cortado_steps_total"][""] = 0;
  for (const char* name : {"cortado_time_to_first_token_seconds", "cortado_time_per_token_seconds",
                           "cortado_request_seconds", "cortado_inspect_seconds"}) {
    histograms_[name];
  }
}

void Metrics::count(const std::string& name, double amount, const std::string& labels) {
  const std::lock_guard lock(mutex_);
  counters_[name][labels] += amount;
}

void Metrics::observe(const std::string& name, double seconds) {
  const std::lock_guard lock(mutex_);
  Histogram& histogram = histograms_[name];
  static_assert(std::tuple_size_v<decltype(histogram.counts)> == std::size(kBounds) + 1);
  const auto* const bound = std::lower_bound(std::begin(kBounds), std::end(kBounds), seconds);
  ++histogram.counts[static_cast<size_t>(bound - std::begin(kBounds))];
  histogram.sum += seconds;
}

std::string Metrics::text(const std::map<std::string, double>& gauges) const {
  const std::lock_guard lock(mutex_);
  std::ostringstream out;
  out.precision(17);
  for (const auto& [name, series] : counters_) {
    head(out, name, "counter");
    for (const auto& [labels, value] : series) {
      out << name << (labels.empty() ? "" : "{" + labels + "}") << " " << value << "\n";
    }
  }
  for (const auto& [name, value] : gauges) {
    head(out, name, ends_with_total(name) ? "counter" : "gauge");
    out << name << " " << value << "\n";
  }
  for (const auto& [name, histogram] : histograms_) {
    head(out, name, "histogram");
    int64_t below = 0;
    for (size_t i = 0; i < histogram.counts.size(); ++i) {
      below += histogram.counts[i];
      out << name << "_bucket{le=\"";
      if (i < std::size(kBounds)) {
        std::ostringstream bound;
        bound << kBounds[i];
        out << bound.str();
      } else {
        out << "+Inf";
      }
      out << "\"} " << below << "\n";
    }
    out << name << "_sum " << histogram.sum << "\n" << name << "_count " << below << "\n";
  }
  return out.str();
}

}  // namespace cortado
