#include "cortado/base/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "cortado/base/human.h"
#include "cortado/base/table.h"

namespace cortado {
namespace {

constexpr double kSilent = 1.5;  // seconds before the first drawing
constexpr double kTerminalEvery = 0.1;
constexpr double kPlainEvery = 10;

bool stderr_is_terminal() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) && !(kind && std::string(kind) == "dumb");
}

int stderr_columns() {
  const int columns = terminal_columns(STDERR_FILENO);
  return columns > 0 ? columns : 80;
}

}  // namespace

ProgressBar::ProgressBar(Options options) : ProgressBar(std::move(options), std::cerr, stderr_is_terminal(), 0) {}

ProgressBar::ProgressBar(Options options, std::ostream& out, bool terminal, int columns)
    : options_(std::move(options)), out_(out), terminal_(terminal), columns_(columns) {
  next_ = terminal_ ? kSilent : kPlainEvery;
}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::start_at(int64_t done) {
  first_ = done;
  start_ = std::chrono::steady_clock::now();
}

std::string ProgressBar::line(double seconds, int64_t done, const std::string& extra, int columns) const {
  const auto amount = [&](int64_t count) {
    return options_.bytes ? human_bytes(static_cast<double>(count)) : with_commas(count);
  };
  std::string head = options_.label, tail;
  const double share = options_.total > 0 ? std::clamp(static_cast<double>(done) / options_.total, 0.0, 1.0) : 0;
  if (options_.total > 0) {
    const std::string percent = std::to_string(static_cast<int>(share * 100));
    head += " " + std::string(3 - std::min<size_t>(3, percent.size()), ' ') + percent + "%";
    tail = amount(done) + "/" + amount(options_.total);
  } else {
    tail = amount(done);
  }
  const double rate = seconds > 0 ? static_cast<double>(done - first_) / seconds : 0;
  if (options_.units_per_count > 0 && rate > 0) {
    const double units = rate * options_.units_per_count;
    tail += "  " + (options_.bytes ? human_bytes(units) : human_count(units) + " " + options_.unit) + "/s";
  }
  if (options_.total > 0 && rate > 0) {
    tail += "  " + human_seconds(static_cast<double>(std::max<int64_t>(0, options_.total - done)) / rate) + " left";
  }
  if (!extra.empty()) tail += "  " + extra;
  const int room = columns - display_width(head) - display_width(tail) - 6;
  if (options_.total > 0 && terminal_ && room >= 5) {
    const int width = std::min(room, 30), filled = static_cast<int>(share * width);
    head += " [" + std::string(static_cast<size_t>(filled), '#') +
            std::string(static_cast<size_t>(width - filled), ' ') + "]";
  }
  return head + " " + tail;
}

void ProgressBar::update(int64_t done, const std::string& extra) {
  if (options_.quiet || finished_) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (seconds >= next_) update_at(seconds, done, extra);
}

void ProgressBar::update_at(double seconds, int64_t done, const std::string& extra) {
  if (options_.quiet || finished_ || seconds < next_) return;
  next_ = seconds + (terminal_ ? kTerminalEvery : kPlainEvery);
  if (!terminal_) {
    out_ << line(seconds, done, extra, 0) << std::endl;
    return;
  }
  const int columns = columns_ > 0 ? columns_ : stderr_columns();
  const std::string text = line(seconds, done, extra, columns);
  // A longer line would wrap, and "\r" would no longer return to its start.
  out_ << "\r\033[K" << text.substr(0, fitting(text, columns - 1)) << std::flush;
  drawn_ = true;
}

void ProgressBar::clear() {
  if (!drawn_) return;
  out_ << "\r\033[K" << std::flush;
  drawn_ = false;
  next_ = std::min(next_, kSilent);
}

void ProgressBar::finish() {
  clear();
  finished_ = true;
}

}  // namespace cortado
