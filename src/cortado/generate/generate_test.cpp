#include "cortado/generate/generate.h"

#include <gtest/gtest.h>

#include "cortado/base/error.h"

namespace cortado {
namespace {

// Returns what is shown for a text that arrives in these pieces.
std::string shown(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopFilter filter(stops);
  std::string text;
  for (const auto& piece : pieces) text += filter.push(piece);
  return text + (filter.stopped() ? "|" : filter.finish());
}

TEST(StopFilter, PassesEverythingWithoutStops) { EXPECT_EQ(shown({}, {"a", "bc", "d"}), "abcd"); }

TEST(StopFilter, EndsBeforeTheStop) {
  EXPECT_EQ(shown({"END"}, {"some END text"}), "some |");
  EXPECT_EQ(shown({"END"}, {"some E", "N", "D text", "more"}), "some |");
  EXPECT_EQ(shown({"END"}, {"END"}), "|");
}

TEST(StopFilter, ReleasesWhatOnlyLookedLikeAStop) {
  EXPECT_EQ(shown({"END"}, {"EN", "EN", "x", "E"}), "ENENxE");
  EXPECT_EQ(shown({"aab"}, {"a", "a", "a", "b", "c"}), "a|");
}

TEST(StopFilter, TheFirstOfSeveralStopsCounts) {
  EXPECT_EQ(shown({"yz", "b"}, {"abcyz"}), "a|");
  EXPECT_EQ(shown({"b", "yz"}, {"ay", "zb"}), "a|");
}

TEST(StopFilter, HoldsNothingBackThatCannotBecomeAStop) {
  StopFilter filter({"\n\n"});
  EXPECT_EQ(filter.push("line"), "line");
  EXPECT_EQ(filter.push("\n"), "");
  EXPECT_EQ(filter.push("next"), "\nnext");
}

TEST(StopFilter, RefusesAnEmptyStop) { EXPECT_THROW(StopFilter({"a", ""}), InputError); }

}  // namespace
}  // namespace cortado
