// The error message of an action, for tests.
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>

namespace cortado::testing {

// The result of error_of() for an action that throws nothing.
inline constexpr const char* kNoError = "no error";

// Returns the message of the exception that `act` throws; kNoError if it throws nothing. Expects a single line, unless
// torch threw it.
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
