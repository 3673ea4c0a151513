// Checks a generator of examples against published statistics.
#pragma once

#include <gtest/gtest.h>

#include "cortado/tasks/examples.h"

namespace cortado::testing {

// Expects that the statistics of 2000 examples are within the tolerances of the published ones.
inline void expect_published(const TaskExamples& task) {
  const Json found = task.statistics(2000);
  const auto published = task.published();
  EXPECT_FALSE(published.empty());
  for (const Published& known : published) {
    EXPECT_NEAR(found.at(known.name).get<double>(), known.value, known.tolerance) << known.name;
  }
}

}  // namespace cortado::testing
