// Measuring time.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace cortado {

// Measures wall-clock time from its construction, with a clock that never jumps.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Runs work() and returns the seconds that it took.
template <typename Work>
double seconds_of(Work&& work) {
  const Stopwatch watch;
  work();
  return watch.seconds();
}

// Requires at least one value. For an even number of values, returns the larger of the two middle ones.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace cortado
