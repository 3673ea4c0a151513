#include "cortado/serve/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cortado/base/error.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/serving.h"

namespace cortado {
namespace {

using namespace std::chrono_literals;
using testing::chatty_engine;

Json json_of(const std::string& text) { return parse_json(text, "test"); }

// A schema with parts of every kind.
const char* const kPerson = R"({"type": "object", "properties": {
  "name": {"type": "string", "maxLength": 8},
  "kind": {"enum": ["cat", "dog", 7, null]},
  "age": {"type": "integer", "minimum": 0, "maximum": 120},
  "weight": {"type": "number"},
  "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
  "home": {"$ref": "#/$defs/home"}},
  "required": ["name", "kind", "age", "tags", "home"], "additionalProperties": false,
  "$defs": {"home": {"type": "object", "properties": {"street": {"const": "Elm"}, "number": {"type": ["integer", "null"]}},
    "required": ["street", "number"], "additionalProperties": false}}})";

// A validator for the parts of JSON Schema that the schemas here use.
bool fits(const Json& value, const Json& schema, const Json& root) {
  if (schema.contains("$ref")) return fits(value, root.at("$defs").at("home"), root);
  if (schema.contains("const")) return value == schema["const"];
  if (schema.contains("enum"))
    return std::find(schema["enum"].begin(), schema["enum"].end(), value) != schema["enum"].end();
  if (schema.contains("anyOf")) {
    return std::any_of(schema["anyOf"].begin(), schema["anyOf"].end(),
                       [&](const Json& one) { return fits(value, one, root); });
  }
  const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
  const std::string type = value.is_number_integer() ? "integer" : value.type_name();
  const bool known = std::any_of(types.begin(), types.end(), [&](const Json& one) {
    return one == type || (one == "number" && value.is_number());
  });
  if (!known) return false;
  if (value.is_number()) return value >= schema.value("minimum", -1e300) && value <= schema.value("maximum", 1e300);
  if (value.is_array()) {
    const bool length = value.size() >= schema.value("minItems", 0u) && value.size() <= schema.value("maxItems", 1000u);
    return length && std::all_of(value.begin(), value.end(),
                                 [&](const Json& item) { return fits(item, schema.at("items"), root); });
  }
  if (!value.is_object()) return true;
  for (const Json& key : schema.value("required", Json::array())) {
    if (!value.contains(key.get<std::string>())) return false;
  }
  const Json properties = schema.value("properties", Json::object());
  return std::all_of(value.items().begin(), value.items().end(), [&](const auto& item) {
    return properties.contains(item.key()) ? fits(item.value(), properties.at(item.key()), root)
                                           : schema.value("additionalProperties", true);
  });
}

std::shared_ptr<const Grammar> grammar_of(const Engine& engine, const std::string& schema, bool closed = true) {
  return engine.grammars().get(engine.models()[0].tokenizer, json_of(schema), closed);
}

Request asked_of(const std::string& prompt, std::shared_ptr<const Grammar> grammar, int64_t seed = 1) {
  Request request;
  request.tokens = make_tokenizer("byte", {})->encode(prompt);
  request.most_tokens = 4000;  // an answer may consist mostly of spaces
  request.sampling.seed = seed;
  request.likeliest = 3;
  request.grammar = std::move(grammar);
  return request;
}

struct ConstrainedText {
  std::string text;
  std::optional<Finish> end;
  std::vector<double> logprobs;
};

ConstrainedText written(Answer& answer) {
  ConstrainedText held;
  for (AnswerPart part; answer.next(part, 20s) == Answer::Got::kPart;) {
    held.text += part.text;
    held.end = part.finish;
    for (const auto& score : part.scores) held.logprobs.push_back(*score.logprob);
  }
  return held;
}

ConstrainedText ask_constrained(Engine& engine, Request request) { return written(*engine.ask(std::move(request))); }

class ConstrainedAnswers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Grammars::available()) GTEST_SKIP() << "this build has no XGrammar";
  }
};

// Returns the one-byte tokens that may follow `text`.
std::string allowed_after(const Grammar& grammar, const std::string& text, bool stops = true) {
  const auto state = grammar.begin(stops);
  for (const char c : text) state->accept(static_cast<unsigned char>(c));
  std::vector<float> logits(256, 1.0F);
  state->restrict(logits);
  std::string allowed;
  for (size_t token = 0; token < logits.size(); ++token) {
    if (logits[token] == 1.0F) allowed += static_cast<char>(token);
  }
  return allowed;
}

TEST_F(ConstrainedAnswers, AreOfTheirSchema) {
  const auto engine = chatty_engine();
  const std::vector<std::string> schemas = {
      kPerson, R"({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 4})",
      R"({"anyOf": [{"type": "boolean"}, {"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"]}]})",
      R"({"type": "string", "enum": ["red", "green"]})",
      R"({"type": "object", "properties": {}, "additionalProperties": false})"};
  for (const auto& text : schemas) {
    const Json schema = json_of(text);
    const auto grammar = grammar_of(*engine, text);
    for (int64_t seed = 0; seed < 4; ++seed) {
      auto request = asked_of("Say it:", grammar, seed);
      if (seed == 3) request.sampling.temperature = 0;
      if (seed == 2) request.sampling.repetition_penalty = 1.5, request.sampling.top_k = 20;
      const auto held = ask_constrained(*engine, request);
      EXPECT_EQ(held.end, Finish::kStop) << held.text;
      EXPECT_TRUE(fits(json_of(held.text), schema, schema)) << held.text;
    }
  }
}

TEST_F(ConstrainedAnswers, OfAnyObjectAreObjects) {
  const auto engine = chatty_engine();
  const auto grammar = grammar_of(*engine, R"({"type": "object"})", false);
  std::set<std::string> texts;
  for (int64_t seed = 0; seed < 6; ++seed) {
    auto request = asked_of("Say it:", grammar, seed);
    request.sampling.bias = {{'"', 8}, {'}', 6}, {']', 6}, {'\\', -100}};  // otherwise the answers would be long
    const auto held = ask_constrained(*engine, request);
    EXPECT_EQ(held.end, Finish::kStop) << held.text;
    EXPECT_TRUE(json_of(held.text).is_object()) << held.text;
    texts.insert(held.text);
  }
  EXPECT_GT(texts.size(), 1u);
}

TEST_F(ConstrainedAnswers, MayBeAnythingThatTheSchemaAllows) {
  const auto engine = chatty_engine();
  const auto object =
      grammar_of(*engine, R"({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})");
  EXPECT_EQ(allowed_after(*object, ""), "{");
  EXPECT_EQ(allowed_after(*object, "{"), "\"");
  EXPECT_EQ(allowed_after(*object, "{\""), "n");
  EXPECT_EQ(allowed_after(*object, "{\"n\":"), " ");
  EXPECT_EQ(allowed_after(*object, "{\"n\": "), "-0123456789");
  EXPECT_EQ(allowed_after(*object, "{\"n\": 1"), "0123456789}");
  EXPECT_EQ(allowed_after(*object, "{\"n\": 1}"), std::string(1, '\0'));  // only the end may follow
  const auto texts = grammar_of(*engine, R"({"type": "string"})");
  const std::string in_text = allowed_after(*texts, "\"");
  for (int byte = 0; byte < 256; ++byte) {  // any byte that begins a UTF-8 character
    const bool begins = (byte >= 0x20 && byte < 0x80) || (byte >= 0xC2 && byte < 0xF5);
    EXPECT_EQ(in_text.find(static_cast<char>(byte)) != std::string::npos, begins) << byte;
  }
  EXPECT_THROW(object->begin(true)->accept('x'), Failure);
  const auto short_texts = grammar_of(*engine, R"({"type": "string", "maxLength": 5})");
  for (const char c : allowed_after(*short_texts, "\"")) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
}

// Tokens of several bytes, also such that span two parts of the schema.
TEST_F(ConstrainedAnswers, MayTakeAnyTokenThatFits) {
  const std::string text = R"({"name": "Anna", "age": 7}{"name": "Otto", "age": 12}, "a" : [true, false, null])";
  const std::shared_ptr<const Tokenizer> tokenizer =
      learn_tokenizer("sentencepiece:300", [n = 0, &text](std::string& piece) mutable {
        piece = text + "\n";
        return n++ < 40;
      });
  Grammars grammars;
  const auto grammar = grammars.get(tokenizer, json_of(R"({"type": "object", "properties": {"name": {"type": "string"},
      "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": false})"),
                                    true);
  const auto tokens = tokenizer->encode(R"({"name": "Anna", "age": 7})");
  const auto after = [&](size_t count) {
    auto state = grammar->begin(true);
    for (size_t i = 0; i < count; ++i) state->accept(tokens[i]);
    return state;
  };
  for (size_t count = 0; count < tokens.size(); ++count) {
    std::vector<float> logits(static_cast<size_t>(tokenizer->vocabulary()), 1.0F);
    after(count)->restrict(logits);
    for (int32_t token = 0; token < tokenizer->vocabulary(); ++token) {
      const bool fits = testing::error_of([&] { after(count)->accept(token); }) == testing::kNoError;
      EXPECT_EQ(logits[static_cast<size_t>(token)] == 1.0F, fits) << count << ": " << tokenizer->piece(token);
    }
  }
  EXPECT_TRUE(after(tokens.size())->ended());
}

TEST_F(ConstrainedAnswers, EndWhereTheyAreWhole) {
  const auto engine = chatty_engine();
  const auto number = grammar_of(*engine, R"({"type": "integer"})");
  const std::string stop(1, '\0');
  EXPECT_EQ(allowed_after(*number, "").find(stop), std::string::npos);
  EXPECT_NE(allowed_after(*number, "1").find(stop), std::string::npos);
  const auto state = number->begin(true);
  state->accept('1');
  EXPECT_FALSE(state->ended());  // more digits may follow
  state->accept(0);
  EXPECT_TRUE(state->ended());
  // Without a stop token the number ends as soon as it is complete.
  const auto endless = number->begin(false);
  EXPECT_FALSE(endless->ended());
  endless->accept('1');
  EXPECT_TRUE(endless->ended());
  auto request = asked_of("Say it:", grammar_of(*engine, kPerson));
  request.ignore_end = true;
  EXPECT_EQ(ask_constrained(*engine, request).end, Finish::kStop);
  request.most_tokens = 5;
  const auto cut = ask_constrained(*engine, request);
  EXPECT_EQ(cut.end, Finish::kLength);
  EXPECT_EQ(cut.text.size(), 5u);
}

TEST_F(ConstrainedAnswers, SchemasThatCannotBeHeldToAreRefused) {
  const auto engine = chatty_engine();
  const auto refused = [&](const std::string& schema) {
    const auto error = testing::error_of([&] { grammar_of(*engine, schema); });
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    return error;
  };
  const auto says = [&](const std::string& schema, const std::string& what) {
    EXPECT_NE(refused(schema).find(what), std::string::npos) << schema << ": " << refused(schema);
  };
  says(R"({"type": "thing"})", "Unsupported type");
  says(R"({"type": 5})", "string");
  says(R"({"type": "object", "properties": 5})", "properties");
  says(R"({"$ref": "#/$defs/none"})", "none");
  says(R"({"$ref": "https://example.com/schema"})", "URI");
  says(R"({"type": "integer", "minimum": 5, "maximum": 2})", "minimum");
  says(R"({"type": "number", "multipleOf": 0.1})", "multipleOf");
  says(R"({"type": "string", "pattern": "("})", "");
  says(R"({"not": {"type": "string"}})", "\"not\" is not supported");
  says(R"({"anyOf": [{"type": "string"}], "properties": {}})", "beside \"anyOf\"");
  says(R"({"type": "string", "minLength": 1000000000})", "at most 1024");
  EXPECT_EQ(refused(R"({"type": "string", "maxLength": 1000000000})"), testing::kNoError);  // shorter texts fit, too
  says(R"({"type": "string", "pattern": ")" + std::string(5000, 'a') + "\"}", "\"pattern\"");
  for (const char* pattern : {"(a{100}){100}", "((a?){99}b?){99}$", "^([a-z]|[a-z0-9]{2,30}){3,50}$", "[a]{2000}",
                              "[a-z]{0,30}[a-z]{0,30}x{99}"}) {
    says(Json{{"type", "string"}, {"pattern", pattern}}.dump(), "repeats too much");
  }
  EXPECT_EQ(refused(R"({"type": "string", "pattern": "^([0-9]{1,3}\\.){3}[0-9]{1,3}[({]?.{30}$"})"), testing::kNoError);
  says(R"({"type": "string", "description": ")" + std::string(70000, 'a') + "\"}", "bytes");
  std::string deep = "true";
  for (int i = 0; i < 40; ++i) deep = R"({"type": "array", "items": )" + deep + "}";
  says(deep, "deep");
  EXPECT_EQ(refused(R"({"type": "object", "properties": {"not": {"type": "string"}, "pattern": {"type": "integer"}}})"),
            testing::kNoError);
}

TEST_F(ConstrainedAnswers, GrammarsAreMadeOnce) {
  const auto engine = chatty_engine();
  const auto one = grammar_of(*engine, kPerson);
  EXPECT_EQ(grammar_of(*engine, kPerson), one);
  EXPECT_NE(grammar_of(*engine, kPerson, false), one);
  Grammars few(1);  // room for only the last grammar
  const auto tokenizer = engine->models()[0].tokenizer;
  const Json schema = json_of(R"({"type": "null"})");
  const auto first = few.get(tokenizer, schema, true);
  EXPECT_EQ(few.get(tokenizer, schema, true), first);
  few.get(tokenizer, json_of(R"({"type": "boolean"})"), true);
  EXPECT_NE(few.get(tokenizer, schema, true), first);
}

// Scores are the model's own, without the grammar's restriction, and saved states are independent of the grammar.
TEST_F(ConstrainedAnswers, LeaveScoresAndStatesAsTheyAre) {
  const auto engine = chatty_engine(), other = chatty_engine();
  const auto held_request = asked_of("A prompt that is long enough", grammar_of(*engine, kPerson));
  auto plain_request = held_request;
  plain_request.grammar = nullptr;
  plain_request.most_tokens = 10;
  const auto held = ask_constrained(*engine, held_request);
  EXPECT_LT(held.logprobs[0], -1);  // a random model would hardly begin like this
  const auto answer = engine->ask(plain_request);
  const auto after = written(*answer), fresh = ask_constrained(*other, plain_request);
  EXPECT_EQ(answer->cached_tokens(), static_cast<int64_t>(plain_request.tokens.size()));
  EXPECT_EQ(after.text, fresh.text);
  EXPECT_EQ(after.logprobs, fresh.logprobs);
}

TEST_F(ConstrainedAnswers, DoNotDependOnTheOthers) {
  std::vector<Request> all;
  const auto engine = chatty_engine();
  for (size_t i = 0; i < 8; ++i) {
    // No prompt begins with another one: it would continue from the other's snapshot, depending on the order, and round
    // differently.
    all.push_back(asked_of(std::to_string(i) + ", say it", i % 2 == 0 ? grammar_of(*engine, kPerson) : nullptr, 5));
    all.back().most_tokens = 100;
  }
  std::vector<ConstrainedText> alone;
  for (const auto& one : all) alone.push_back(ask_constrained(*chatty_engine(), one));
  std::vector<std::shared_ptr<Answer>> answers;
  for (const auto& one : all) answers.push_back(engine->ask(one));
  for (size_t i = 0; i < all.size(); ++i) {
    const auto together = written(*answers[i]);
    EXPECT_EQ(together.text, alone[i].text);
    EXPECT_EQ(together.logprobs, alone[i].logprobs);
  }
  auto several = all[0];
  several.choices = 2;
  const auto both = engine->ask(several);
  std::vector<std::string> texts(2);
  for (AnswerPart part; both->next(part, 20s) == Answer::Got::kPart;)
    texts[static_cast<size_t>(part.choice)] += part.text;
  EXPECT_EQ(texts[0], alone[0].text);
  ++all[0].sampling.seed;
  EXPECT_EQ(texts[1], ask_constrained(*engine, all[0]).text);
}

// The vocabulary lacks tokens to complete the answer.
TEST_F(ConstrainedAnswers, ThatCannotGoOnFailAlone) {
  const std::shared_ptr<const Tokenizer> tokenizer =
      learn_tokenizer("char", [n = 0](std::string& piece) mutable { return piece = "{\"a:1 Say it", n++ < 1; });
  Engine engine({{.name = "it", .model = testing::byte_model(R"({"mixer": "latte"})"), .tokenizer = tokenizer}}, {});
  Request plain;
  plain.tokens = tokenizer->encode("Say it");
  plain.most_tokens = 60;
  const auto expected = ask_constrained(engine, plain);
  Request held = plain;
  held.grammar = grammar_of(engine, R"({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]})");
  const auto beside = engine.ask(plain), stuck = engine.ask(held);
  EXPECT_NE(testing::error_of([&] { written(*stuck); }).find("no token of what must come next"), std::string::npos);
  EXPECT_EQ(written(*beside).text, expected.text);
  EXPECT_NE(testing::error_of([&] { grammar_of(engine, R"({"type": "array"})"); }).find("begin with"),
            std::string::npos);
}

}  // namespace
}  // namespace cortado
