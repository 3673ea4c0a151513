#include "cortado/base/json.h"

#include <gtest/gtest.h>

#include <functional>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

using testing::error_of;
using testing::kNoError;

JsonReader reader(const std::string& text) { return JsonReader(parse_json(text, "test"), "config"); }

TEST(Json, ReadsEveryType) {
  JsonReader r =
      reader(R"({"i": -3, "e": 1e6, "n": 0.5, "b": true, "t": "x", "c": "mlp", "o": {"k": 1}, "z": null, "a": [1]})");
  EXPECT_EQ(r.integer("i", -5, 5), -3);
  EXPECT_EQ(r.integer("e", 0, 2000000), 1000000);
  EXPECT_DOUBLE_EQ(r.number("n", 0, 1), 0.5);
  EXPECT_TRUE(r.boolean("b"));
  EXPECT_EQ(r.text("t"), "x");
  EXPECT_EQ(r.choice("c", {"mlp", "glu"}), "mlp");
  EXPECT_EQ(r.object("o").dump(), R"({"k":1})");
  EXPECT_EQ(r.any("a").dump(), "[1]");
  EXPECT_FALSE(r.has("z"));
  EXPECT_EQ(r.optional_integer("z", 0, 1), std::nullopt);
  EXPECT_EQ(r.optional_number("absent", 0, 1), std::nullopt);
  EXPECT_EQ(r.integer("absent2", 0, 9, 7), 7);
  EXPECT_TRUE(r.object("absent3").empty());
  r.finish();
}

TEST(Json, ErrorsNamePlaceKeyValueAndWhatIsAllowed) {
  EXPECT_EQ(error_of([] { reader(R"({"d": 0})").integer("d", 1, 8); }),
            "[config] key \"d\": expected an integer from 1 to 8, got 0");
  EXPECT_EQ(error_of([] { reader(R"({"d": "4"})").integer("d", 1, 8); }),
            "[config] key \"d\": expected an integer from 1 to 8, got \"4\"");
  EXPECT_EQ(error_of([] { reader(R"({"d": 1.5})").integer("d", 1, 8); }),
            "[config] key \"d\": expected an integer from 1 to 8, got 1.5");
  EXPECT_NE(error_of([] { reader(R"({"d": 18446744073709551615})").integer("d", 1, 8); }), kNoError);
  EXPECT_EQ(error_of([] { reader("{}").integer("d", 1, 8); }),
            "[config] key \"d\" is missing: expected an integer from 1 to 8");
  EXPECT_EQ(error_of([] { reader(R"({"p": 1.5})").number("p", 0, 1); }),
            "[config] key \"p\": expected a number from 0 to 1, got 1.5");
  EXPECT_EQ(error_of([] { reader(R"({"b": 1})").boolean("b"); }), "[config] key \"b\": expected true or false, got 1");
  EXPECT_EQ(error_of([] { reader(R"({"t": []})").text("t"); }), "[config] key \"t\": expected a text, got []");
  EXPECT_EQ(error_of([] { reader(R"({"c": "swigul"})").choice("c", {"mlp", "swiglu"}); }),
            "[config] key \"c\": expected one of \"mlp\", \"swiglu\", got \"swigul\"; did you mean \"swiglu\"?");
  EXPECT_EQ(error_of([] { reader(R"({"o": 3})").object("o"); }),
            "[config] key \"o\": expected an object { ... }, got 3");
  EXPECT_EQ(error_of([] { reader("[1]"); }), "[config] expected an object { ... }, got [1]");
}

TEST(Json, DepthIsBounded) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(parse_json(nested(200), "c.json").dump(), nested(200));
  EXPECT_EQ(error_of([&] { parse_json("{\n\"a\": " + nested(200) + "}", "c.json"); }),
            "[c.json] line 2, column 205: lists and objects lie in one another more than 200 deep");
  EXPECT_NE(error_of([&] { parse_json(nested(200000), "c.json"); }), kNoError);
  const std::string text = R"({"a": "\"[", "b": ")" + std::string(300, '{') + R"("})";  // brackets inside strings do
                                                                                        // not count
  EXPECT_EQ(parse_json(text, "c.json").size(), 2u);
}

TEST(Json, NumbersBeyondADoubleNameTheirPlace) {
  EXPECT_EQ(error_of([] { parse_json("{\n  \"a\": \"1e999\",\n  \"b\": 1e999}", "c.json"); }),
            "[c.json] line 3, column 8: the number 1e999 is beyond all that can be kept");
  EXPECT_EQ(error_of([] { parse_json("[-1e400]", "c.json"); }),
            "[c.json] line 1, column 2: the number -1e400 is beyond all that can be kept");
}

TEST(Json, UnknownKeysAreRefusedWithTheNearestKnownOne) {
  JsonReader near = reader(R"({"dmi": 4})");
  near.integer("dim", 1, 8, 4);
  EXPECT_EQ(error_of([&] { near.finish(); }), "[config] unknown key \"dmi\" (value 4); did you mean \"dim\"?");
  JsonReader far = reader(R"({"colour": "red"})");
  far.integer("dim", 1, 8, 4);
  far.integer("heads", 1, 8, 4);
  EXPECT_EQ(error_of([&] { far.finish(); }),
            "[config] unknown key \"colour\" (value \"red\"); allowed: \"dim\", \"heads\"");
}

TEST(Json, BrokenTextNamesLineAndColumn) {
  EXPECT_EQ(error_of([] {
              parse_json("{\n  \"a\": 1,\n  \"b\" 2}", "c.json");
            }).rfind("[c.json] line 3, column 7: not valid JSON:", 0),
            0u);
  EXPECT_EQ(error_of([] { parse_json("", "c.json"); }).rfind("[c.json] line 1, column 1: not valid JSON:", 0), 0u);
  EXPECT_NE(error_of([] { parse_json("{\"a\": \"\xff\"}", "c.json"); }), kNoError);
  EXPECT_EQ(error_of([] { parse_json(R"({"a": {"x": 1, "x": 2}})", "c.json"); }),
            "[c.json] key \"x\" appears twice in one object");
  EXPECT_EQ(parse_json(R"([{"x": 1}, {"x": 2}])", "c.json").size(), 2u);
  EXPECT_EQ(error_of([] { read_json_file("/no/such/file.json"); }),
            "[/no/such/file.json] cannot be read: No such file or directory");
}

TEST(Json, EarlierNamesAreReadAsTheNewOnes) {
  JsonReader reader(parse_json(R"({"conv": 3, "map": "exp", "other": "exp"})", "a"), "a");
  reader.renamed("conv", "taps");
  reader.renamed("kernel", "size");
  reader.renamed_word("map", "exp", "hedgehog_exp");
  reader.renamed_word("missing", "exp", "hedgehog_exp");
  EXPECT_EQ(reader.integer("taps", 0, 9), 3);
  EXPECT_EQ(reader.integer("size", 0, 9, 5), 5);
  EXPECT_EQ(reader.text("map"), "hedgehog_exp");
  EXPECT_EQ(reader.text("other"), "exp");
  reader.finish();
  JsonReader both(parse_json(R"({"conv": 3, "taps": null})", "b"), "b");
  EXPECT_EQ(testing::error_of([&] { both.renamed("conv", "taps"); }),
            "[b] \"conv\" is an earlier name of \"taps\": only one of them may be there");
}

TEST(Json, NearestWord) {
  const std::vector<std::string> known{"latte", "macchiato", "linear"};
  EXPECT_EQ(nearest_word("late", known), "latte");
  EXPECT_EQ(nearest_word("machiato", known), "macchiato");
  EXPECT_EQ(nearest_word("espresso", known), "");
  EXPECT_EQ(nearest_word("x", {}), "");
}

}  // namespace
}  // namespace cortado
