// The server's metrics, in the text format of Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace cortado {

// Counters and histograms. All methods are thread-safe.
class Metrics {
 public:
  // Metrics without labels exist from the beginning with value 0, so that rates include the first request.
  Metrics();

  // `labels` are written as between the braces: `path="/v1/models",code="200"`.
  void count(const std::string& name, double amount = 1, const std::string& labels = "");
  void observe(const std::string& name, double seconds);  // adds to a histogram of durations

  // Returns all metrics together with `gauges`, the current values.
  std::string text(const std::map<std::string, double>& gauges) const;

 private:
  struct Histogram {
    std::array<int64_t, 16> counts = {};  // one per bound, and one for larger values
    double sum = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, double>> counters_;  // by name, then by labels
  std::map<std::string, Histogram> histograms_;
};

}  // namespace cortado
