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

TEST(TextWriter, EndsAtStopTokensAndDropsSpaces) {
  const std::shared_ptr<Tokenizer> bytes = make_tokenizer("byte", {});
  TextWriter writer(bytes, {}, {.stops = {"xy"}, .stop_tokens = {'!'}, .drop_spaces = true});
  std::string text;
  for (const char c : std::string("  a x")) text += writer.push(c);
  EXPECT_EQ(text, "a ");  // the x may become a stop
  EXPECT_EQ(writer.push('!'), "");
  EXPECT_TRUE(writer.ended_by_token());
  EXPECT_EQ(writer.finish(), "x");
  EXPECT_FALSE(writer.ended_by_string());
  TextWriter cut(bytes, {}, {.stops = {"xy"}});
  EXPECT_EQ(cut.push('x'), "");
  EXPECT_EQ(cut.push('y'), "");
  EXPECT_EQ(cut.finish(), "");
  EXPECT_TRUE(cut.ended_by_string());
}

}  // namespace
}  // namespace cortado
