// A progress bar on the standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace cortado {

// train   42% [########            ] 840/2,000  12.3 k tokens/s  1:07 left  loss 1.93
//
// On a terminal one line is redrawn in place, at most ten times a second; elsewhere a line is written every ten
// seconds. Nothing is drawn in the first second and a half, so that short work stays silent. One thread at a time.
class ProgressBar {
 public:
  struct Options {
    std::string label;
    int64_t total = 0;           // 0: unknown, no percentage and no time left
    std::string unit = "steps";  // of the rate
    double units_per_count = 1;  // e.g. tokens a step, when `unit` is "tokens"; 0: show no rate
    bool bytes = false;          // counts are bytes: "1.5 MiB/20 MiB"
    bool quiet = false;          // draw nothing, ever
  };
  explicit ProgressBar(Options options);
  // For tests: where to draw, whether it is a terminal and how wide.
  ProgressBar(Options options, std::ostream& out, bool terminal, int columns);
  ~ProgressBar();  // finish()
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `done` of `total`; `extra` is shown at the end ("loss 1.93"). Cheap when nothing is due.
  void update(int64_t done, const std::string& extra = {});
  void update_at(double seconds, int64_t done, const std::string& extra);  // the same at a given time

  // The same where the total is known only now.
  void update_of(int64_t done, int64_t total) {
    options_.total = total;
    update(done);
  }

  // Work done before the bar was made (a resumed run): not counted in the rate.
  void start_at(int64_t done);

  // Takes the bar off the terminal so that other output can be written; the next update draws it again.
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
