// Errors of templates.
#pragma once

#include "cortado/base/error.h"

namespace cortado::jinja {

// The template is wrong, refuses the conversation (raise_exception), or exceeds a limit.
class Error : public InputError {
 public:
  using InputError::InputError;
};

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(concat(parts...));
}

}  // namespace cortado::jinja
