// A progress bar on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace cortado {

// train   42% [########            ] 840/2,000  12.3 k tokens/s  1:07 left  loss 1.93
//
// On a terminal, one line is redrawn in place, at most ten times per second. Elsewhere a line is written every ten
// seconds. Nothing is drawn in the first 1.5 seconds, so that short work stays silent. Not thread-safe.
class ProgressBar {
 public:
  struct Options {
    std::string label;
    int64_t total = 0;           // 0: unknown, no percentage and no time left
    std::string unit = "steps";  // the unit of the rate
    double units_per_count = 1;  // e.g. tokens per step if `unit` is "tokens"; 0: show no rate
    bool bytes = false;          // counts are bytes: "1.5 MiB/20 MiB"
    bool quiet = false;          // never draw anything
  };
  explicit ProgressBar(Options options);
  // For tests: where to draw, whether it is a terminal and how wide.
  ProgressBar(Options options, std::ostream& out, bool terminal, int columns);
  ~ProgressBar();  // calls finish()
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Reports `done` of `total`. `extra` is shown at the end ("loss 1.93"). Cheap if no redraw is due.
  void update(int64_t done, const std::string& extra = {});
  void update_at(double seconds, int64_t done, const std::string& extra);  // update() at a given time

  // update() for a total that is known only now.
  void update_of(int64_t done, int64_t total) {
    options_.total = total;
    update(done);
  }

  // Reports work done before the bar was made (a resumed run); the rate does not count it.
  void start_at(int64_t done);

  // Clears the bar from the terminal so that other output can be written; the next update redraws it.
  void clear();

  // Ends the bar: clears it on a terminal. Further updates draw nothing.
  void finish();

 private:
  std::string line(double seconds, int64_t done, const std::string& extra, int columns) const;

  Options options_;
  std::ostream& out_;
  bool terminal_;
  int columns_;  // 0: ask the terminal at each drawing
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t first_ = 0;
  double next_ = 0;
  bool drawn_ = false;
  bool finished_ = false;
};

}  // namespace cortado
