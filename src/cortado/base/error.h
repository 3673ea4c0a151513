// Errors: one readable line, and the exit code the program ends with.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace cortado {

// Bad usage or bad input (flags, files, JSON, shapes): exit code 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The input was valid but the work failed (disk full, loss not finite, ...): exit code 1.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Joins its arguments by operator<<: concat("expected ", 3, " heads").
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// fail_input_if(x < 0, "[op] x must be >= 0, got ", x): throws InputError with the parts joined.
template <typename... Parts>
void fail_input_if(bool bad, const Parts&... parts) {
  if (bad) throw InputError(concat(parts...));
}

}  // namespace cortado
