// The error message of an action, for tests.
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>

namespace cortado::testing {

inline constexpr const char* kNoError = "no error";

// Returns the message of the exception that `act` throws and expects that ours have one line; "no error" if it throws
// nothing.
inline std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << "more than one line: " << message;
    return message;
  }
  return kNoError;
}

}  // namespace cortado::testing
