#include "cortado/base/chart.h"

#include <gtest/gtest.h>

#include <limits>
#include <regex>

namespace cortado::chart_test {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Returns the texts of a picture in document order.
std::vector<std::string> labels(const std::string& svg) {
  static const std::regex kText("<text[^>]*>([^<]*)</text>");
  std::vector<std::string> found;
  for (auto at = std::sregex_iterator(svg.begin(), svg.end(), kText); at != std::sregex_iterator(); ++at) {
    found.push_back((*at)[1]);
  }
  return found;
}

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST(LineChart, DrawsEverySeriesWithItsPointsAndName) {
  const LineChart chart{"Loss & <length>",
                        "tokens",
                        "perplexity",
                        true,
                        true,
                        {{"softmax", {{256, 20}, {1024, 15}, {32768, 4000}}}, {"window", {{256, 21}, {1024, 18}}}}};
  const std::string svg = chart.svg();
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_EQ(count(svg, "<circle"), 5u);
  EXPECT_EQ(count(svg, "<path"), 2u);
  const auto words = labels(svg);
  for (const char* word : {"Loss &amp; &lt;length&gt;", "tokens", "perplexity", "softmax", "window", "256", "32,768"}) {
    EXPECT_TRUE(has(words, word)) << word;
  }
  EXPECT_EQ(svg, chart.svg());
}

TEST(LineChart, LogarithmicAxesSpacePowersEvenly) {
  const LineChart chart{"", "", "", true, false, {{"a", {{256, 0}, {1024, 1}, {4096, 2}}}}};
  const std::string svg = chart.svg();
  static const std::regex kCircle("<circle cx=\"([0-9.]+)\" cy=\"([0-9.]+)\"");
  std::vector<double> x, y;
  for (auto at = std::sregex_iterator(svg.begin(), svg.end(), kCircle); at != std::sregex_iterator(); ++at) {
    x.push_back(std::stod((*at)[1]));
    y.push_back(std::stod((*at)[2]));
  }
  ASSERT_EQ(x.size(), 3u);
  EXPECT_NEAR(x[1] - x[0], x[2] - x[1], 0.2);
  EXPECT_GT(x[1], x[0]);
  EXPECT_NEAR(y[1] - y[0], y[2] - y[1], 0.2);
  EXPECT_LT(y[1], y[0]);  // larger is higher
}

TEST(LineChart, WhatCannotBeDrawnBreaksTheLine) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const LineChart chart{"", "", "", false, true, {{"a", {{0, 1}, {1, nan}, {2, 0}, {3, 10}, {4, 20}}}}};
  const std::string svg = chart.svg();
  EXPECT_EQ(count(svg, "<circle"), 3u);
  EXPECT_EQ(count(svg, " L "), 1u);
  EXPECT_EQ(count(svg, "nan"), 0u);
}

TEST(LineChart, NothingOrOnePointIsStillAPicture) {
  EXPECT_EQ(count(LineChart{}.svg(), "nan"), 0u);
  for (const bool logarithmic : {false, true}) {
    const std::string svg = LineChart{"", "", "", logarithmic, logarithmic, {{"a", {{8, 3}}}}}.svg();
    EXPECT_EQ(count(svg, "<circle"), 1u);
    EXPECT_EQ(count(svg, "nan") + count(svg, "inf"), 0u);
    EXPECT_TRUE(has(labels(svg), logarithmic ? "8" : "3")) << svg;
  }
}

TEST(LineChart, CloseValuesHaveTicksToo) {
  const std::string svg = LineChart{"", "", "", true, true, {{"a", {{300, 13.1}, {500, 13.4}}}}}.svg();
  EXPECT_GE(labels(svg).size(), 10u);
  EXPECT_TRUE(has(labels(svg), "400")) << svg;
  EXPECT_TRUE(has(labels(svg), "13.2")) << svg;
}

}  // namespace cortado::chart_test
