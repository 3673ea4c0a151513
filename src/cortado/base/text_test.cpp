// Tables, progress bar, number formats, UTF-8, random streams.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "cortado/base/human.h"
#include "cortado/base/memory.h"
#include "cortado/base/progress.h"
#include "cortado/base/random.h"
#include "cortado/base/table.h"
#include "cortado/base/utf8.h"

namespace cortado {
namespace {

TEST(Human, Numbers) {
  EXPECT_EQ(human_bytes(700), "700 B");
  EXPECT_EQ(human_bytes(1.5 * 1024 * 1024), "1.5 MiB");
  EXPECT_EQ(human_bytes(1024 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(999999), "1.0 M");
  EXPECT_EQ(human_count(12345678), "12.3 M");
  EXPECT_EQ(human_count(0.25), "0.25");
  EXPECT_EQ(with_commas(1115394), "1,115,394");
  EXPECT_EQ(with_commas(-1000), "-1,000");
  EXPECT_EQ(with_commas(-100), "-100");
  EXPECT_EQ(human_seconds(0.44), "0.4 s");
  EXPECT_EQ(human_seconds(59.4), "59 s");
  EXPECT_EQ(human_seconds(75), "1:15");
  EXPECT_EQ(human_seconds(4000), "1:06:40");
  EXPECT_EQ(human_seconds(200000), "2 d 07:33");
  EXPECT_EQ(human_seconds(-1), "?");
}

TEST(Memory, ResidentGrowsWithWhatIsTouched) {
  const int64_t before = resident_bytes();
  ASSERT_GT(before, 0);
  std::vector<char> block(64 << 20, 1);
  EXPECT_GT(resident_bytes() - before, 48 << 20);
  EXPECT_GE(peak_resident_bytes(), 64 << 20);
  EXPECT_EQ(block.back(), 1);
}

TEST(Table, FoldsCellsThatAreTooWide) {
  Table table({"name", "what it says"});
  table.add_row({"one", "a few words that go on"});
  table.add_row({"two", "short"});
  EXPECT_EQ(table.width(), 4 + 2 + 22);
  EXPECT_EQ(table.text(28), table.text());
  EXPECT_EQ(table.text(18),
            "name  what it says\n----  ------------\none   a few words\n      that go on\ntwo   short\n");
  using Lines = std::vector<std::string>;
  EXPECT_EQ(fold("", 5), Lines{""});
  EXPECT_EQ(fold("ab cd ef", 5), (Lines{"ab cd", "ef"}));
  EXPECT_EQ(fold("abcdefgh ij", 3), (Lines{"abc", "def", "gh", "ij"}));
  EXPECT_EQ(fold("\u6F22\u5B57\u6F22", 4), (Lines{"\u6F22\u5B57", "\u6F22"}));
}

TEST(Table, AlignsByDisplayWidthAndNumbersRight) {
  Table table({"name", "loss"});
  table.add_row({"naïve", "1.9"});
  table.add_row({"拿铁", "12.25"});
  table.add_row({"short"});
  EXPECT_EQ(table.text(),
            "name    loss\n"
            "-----  -----\n"
            "naïve    1.9\n"
            "拿铁   12.25\n"
            "short\n");
  EXPECT_EQ(table.markdown(),
            "| name  |  loss |\n"
            "|-------|------:|\n"
            "| naïve |   1.9 |\n"
            "| 拿铁  | 12.25 |\n"
            "| short |       |\n");
  Table pipes({"a"});
  pipes.add_row({"x|y"});
  EXPECT_NE(pipes.markdown().find("x\\|y"), std::string::npos);
  EXPECT_EQ(display_width("e\u0301"), 1);
  EXPECT_EQ(display_width("😀"), 2);
}

TEST(Progress, SilentThenInPlaceAtMostTenTimesASecond) {
  std::ostringstream out;
  {
    ProgressBar bar({.label = "train", .total = 2000, .unit = "tokens", .units_per_count = 768}, out, true, 80);
    bar.update_at(0.5, 100, "");
    EXPECT_EQ(out.str(), "");
    bar.update_at(2.0, 840, "loss 1.93");
    EXPECT_EQ(out.str(), "\r\033[Ktrain  42% [#####         ] 840/2,000  322.6 k tokens/s  2.8 s left  loss 1.93");
    const std::string seen = out.str();
    bar.update_at(2.05, 850, "");
    EXPECT_EQ(out.str(), seen);
    bar.update_at(2.11, 860, "");
    EXPECT_NE(out.str(), seen);
  }
  EXPECT_EQ(out.str().substr(out.str().size() - 4), "\r\033[K") << "left on the terminal";
}

TEST(Progress, NeverWiderThanTheTerminal) {
  std::ostringstream out;
  ProgressBar bar({.label = "a label of some length", .total = 10}, out, true, 30);
  bar.update_at(2.0, 5, "and much more");
  EXPECT_LE(display_width(out.str().substr(4)), 29);
}

TEST(Progress, ElsewhereALineEveryTenSeconds) {
  std::ostringstream out;
  ProgressBar bar({.label = "read", .total = 1 << 21, .bytes = true}, out, false, 0);
  bar.update_at(2, 1 << 20, "");
  EXPECT_EQ(out.str(), "");
  bar.update_at(11, 1 << 20, "");
  EXPECT_EQ(out.str(), "read  50% 1.0 MiB/2.0 MiB  93.1 KiB/s  11 s left\n");
  bar.update_at(15, 1 << 20, "");
  bar.clear();
  bar.finish();
  const std::string all = out.str();
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 1);
  EXPECT_EQ(all.find('\r'), std::string::npos);
}

TEST(Progress, QuietDrawsNothing) {
  std::ostringstream out;
  ProgressBar bar({.label = "x", .total = 10, .quiet = true}, out, true, 80);
  bar.update_at(100, 5, "");
  bar.finish();
  EXPECT_EQ(out.str(), "");
}

TEST(Utf8, RoundTripOfEveryScalarValue) {
  for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, code);
    const Utf8Char c = utf8_char(text);
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(static_cast<size_t>(c.length), text.size());
    if (text.size() > 1) {
      ASSERT_TRUE(utf8_char(text.substr(0, text.size() - 1)).unfinished);
    }
  }
}

TEST(Utf8, RefusesWhatIsNotUtf8) {
  for (const std::string bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                                "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3(", "\xE2\x28\xA1"}) {
    EXPECT_EQ(utf8_char(bad).length, 0);
    EXPECT_FALSE(utf8_char(bad).unfinished);
    EXPECT_EQ(utf8_valid_prefix("ok" + bad), 2u);
  }
  EXPECT_EQ(utf8_valid_prefix("naïve 😀"), std::string("naïve 😀").size());
  EXPECT_EQ(describe_char(0xE9), "'é' (U+00E9)");
  EXPECT_EQ(describe_char(7), "U+0007");
}

TEST(Random, PhiloxKnownAnswers) {  // from the Random123 distribution's kat_vectors
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, StreamsArePureAndDistinct) {
  const RandomStream a(1, "crops"), again(1, "crops"), seed(2, "crops"), name(1, "dropout");
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(a.bits(i, 3), again.bits(i, 3));
    for (const RandomStream* s : {&a, &seed, &name}) seen.insert(s->bits(i, 3));
    seen.insert(a.bits(3, i + 1000));
  }
  EXPECT_EQ(seen.size(), 400u);
}

TEST(Random, UniformAndBelow) {
  const RandomStream stream(7, "test");
  double sum = 0;
  std::vector<int> counts(10);
  for (uint64_t i = 0; i < 100000; ++i) {
    const double u = stream.uniform(i);
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
    ++counts[stream.below(10, i, 1)];
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
  EXPECT_EQ(stream.below(1, 5), 0u);
}

TEST(Random, Permutation) {
  const RandomStream stream(7, "test");
  const auto order = stream.permutation(1000, 3);
  std::vector<int64_t> sorted = order, identity(1000);
  std::sort(sorted.begin(), sorted.end());
  std::iota(identity.begin(), identity.end(), 0);
  EXPECT_EQ(sorted, identity);
  EXPECT_NE(order, identity);
  EXPECT_EQ(order, stream.permutation(1000, 3));
  EXPECT_NE(order, stream.permutation(1000, 4));
  EXPECT_TRUE(stream.permutation(0, 0).empty());
}

}  // namespace
}  // namespace cortado
