// What a server counts, in the text format of Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace cortado {

class Metrics {
 public:
  // What has no labels is there from the first moment on, as 0: a rate begins with the first request, not the second.
  Metrics();

  // `labels` as they stand between the braces: `path="/v1/models",code="200"`.
  void count(const std::string& name, double amount = 1, const std::string& labels = "");
  void observe(const std::string& name, double seconds);  // a histogram of times

  // All of them, with `gauges` of this moment.
  std::string text(const std::map<std::string, double>& gauges) const;

 private:
  struct Histogram {
    std::array<int64_t, 16> counts = {};  // of each bound, and of what is above all
    double sum = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, double>> counters_;  // by name, by labels
  std::map<std::string, Histogram> histograms_;
};

}  // namespace cortado
