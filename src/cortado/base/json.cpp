#include "cortado/base/json.h"

#include <algorithm>
#include <cmath>

#include "cortado/base/asked_keys.h"
#include "cortado/base/edit_distance.h"
#include "cortado/base/files.h"
#include "cortado/base/words.h"

namespace cortado {
namespace {

std::string shown(double value) {
  std::ostringstream out;
  out.precision(10);
  out << value;
  return out.str();
}

std::string range_text(int64_t low, int64_t high) {
  if (high == std::numeric_limits<int64_t>::max()) return concat("an integer of at least ", low);
  return concat("an integer from ", low, " to ", high);
}

std::string range_text(double low, double high) {
  const bool any_low = low <= std::numeric_limits<double>::lowest();
  const bool any_high = high >= std::numeric_limits<double>::max();
  if (any_low && any_high) return "a finite number";
  if (any_high) return concat("a number of at least ", shown(low));
  if (any_low) return concat("a number of at most ", shown(high));
  return concat("a number from ", shown(low), " to ", shown(high));
}

// Returns nlohmann's message on one line, without its prefix "[json.exception...] parse error at line 1, column 2: ".
std::string plain_reason(const std::string& what) {
  std::string reason = what;
  if (const size_t head = reason.find("syntax error"); head != std::string::npos) reason = reason.substr(head);
  for (char& c : reason) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  return reason;
}

// Returns the line and column of a byte. All three count from 1, as nlohmann does.
std::pair<size_t, size_t> line_and_column(std::string_view text, size_t byte) {
  size_t end = std::min(text.size(), byte > 0 ? byte - 1 : 0);
  size_t line =
      1 + static_cast<size_t>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
  size_t start = text.substr(0, end).rfind('\n');
  return {line, end - (start == std::string_view::npos ? 0 : start + 1) + 1};
}

constexpr int kDeepest = 200;

// Calls see(position, character) for each character outside of strings, until it returns false.
template <typename See>
void outside_strings(std::string_view text, const See& see) {
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (inside && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      inside = !inside;
    } else if (!inside && !see(i, text[i])) {
      return;
    }
  }
}

std::string place_in(std::string_view text, size_t byte, const std::string& source_name) {
  const auto [line, column] = line_and_column(text, byte);
  return concat("[", source_name, "] line ", line, ", column ", column, ": ");
}

// nlohmann names the number that is too large, as in '1e999', but not its place in the file.
[[noreturn]] void refuse_number(std::string_view text, const std::string& what, const std::string& source_name) {
  const size_t first = what.find('\''), last = what.rfind('\'');
  const std::string number = first < last ? what.substr(first + 1, last - first - 1) : "";
  size_t byte = 0;
  outside_strings(text, [&](size_t i, char) {
    if (text.substr(i, number.size()) == number) byte = i + 1;
    return byte == 0;
  });
  throw InputError(concat(place_in(text, byte, source_name), "the number ", number, " is beyond all that can be kept"));
}

// Refuses an object that has a key twice: nlohmann would silently keep one of the two.
class DuplicateKeys {
 public:
  void see(Json::parse_event_t event, const Json& parsed, const std::string& source) {
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event != Json::parse_event_t::key) return;
    const auto key = parsed.get<std::string>();
    fail_input_if(!open_.back().insert(key).second, "[", source, "] key ", excerpt(parsed),
                  " appears twice in one object");
  }

 private:
  std::vector<std::set<std::string>> open_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& source_name) {
  check_json_depth(text, source_name);
  DuplicateKeys keys;
  auto callback = [&](int, Json::parse_event_t event, Json& parsed) {
    keys.see(event, parsed, source_name);
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), callback);
  } catch (const Json::parse_error& error) {
    throw InputError(concat(place_in(text, error.byte, source_name), "not valid JSON: ", plain_reason(error.what())));
  } catch (const Json::out_of_range& error) {
    refuse_number(text, error.what(), source_name);
  }
}

void check_json_depth(std::string_view text, const std::string& source_name) {
  int depth = 0;
  outside_strings(text, [&](size_t i, char c) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kDeepest) {
      throw InputError(concat(place_in(text, i + 1, source_name), "lists and objects lie in one another more than ",
                              kDeepest, " deep"));
    }
    return true;
  });
}

Json read_json_file(const std::string& path) { return parse_json(read_file(path), path); }

std::string excerpt(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr size_t kLongest = 60;
  if (text.size() <= kLongest) return text;
  size_t cut = kLongest;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return text.substr(0, cut) + "...";
}

JsonReader::JsonReader(const Json& object, std::string place)
    : object_(std::make_shared<Json>(object)), place_(std::move(place)) {
  if (!object_->is_object()) fail("expected an object { ... }, got ", excerpt(object));
}

void JsonReader::refuse(const std::string& key, const Json* value, const std::string& expected,
                        const std::string& hint) const {
  if (!value) fail("key \"", key, "\" is missing: expected ", expected);
  fail("key \"", key, "\": expected ", expected, ", got ", excerpt(*value), hint);
}

const Json* JsonReader::look(const std::string& key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

const Json* JsonReader::find(const std::string& key) {
  asked_.insert(key);
  return look(key);
}

void JsonReader::note(const std::string& key, std::string expected, Json fallback, std::vector<std::string> words) {
  questions_.push_back({key, std::move(expected), std::move(fallback), std::move(words)});
  AskedKeys::add(place_, questions_.back());
}

bool JsonReader::has(const std::string& key) const { return look(key) != nullptr; }

void JsonReader::renamed(const std::string& earlier, const std::string& key) {
  if (!says(earlier)) return;
  if (says(key)) fail("\"", earlier, "\" is an earlier name of \"", key, "\": only one of them may be there");
  Json changed = *object_;
  changed[key] = Json(changed.at(earlier));
  changed.erase(earlier);
  object_ = std::make_shared<Json>(std::move(changed));
}

void JsonReader::renamed_word(const std::string& key, const std::string& earlier, const std::string& word) {
  if (!says(key) || object_->at(key) != earlier) return;
  Json changed = *object_;
  changed[key] = word;
  object_ = std::make_shared<Json>(std::move(changed));
}

int64_t JsonReader::integer(const std::string& key, int64_t low, int64_t high, std::optional<int64_t> fallback) {
  note(key, range_text(low, high), fallback ? Json(*fallback) : Json());
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  bool good = value && value->is_number_integer();
  int64_t result = 0;
  if (good && value->is_number_unsigned()) {
    const auto wide = value->get<uint64_t>();
    good = wide <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    result = static_cast<int64_t>(wide);
  } else if (good) {
    result = value->get<int64_t>();
  } else if (value && value->is_number_float()) {  // people write 1e6 for an integer
    const double real = value->get<double>();
    good = std::abs(real) < 9e15 && std::floor(real) == real;
    if (good) result = static_cast<int64_t>(real);
  }
  if (!good || result < low || result > high) refuse(key, value, range_text(low, high));
  return result;
}

double JsonReader::number(const std::string& key, double low, double high, std::optional<double> fallback) {
  note(key, range_text(low, high), fallback ? Json(*fallback) : Json());
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  const double result = value && value->is_number() ? value->get<double>() : std::nan("");
  if (!std::isfinite(result) || result < low || result > high) refuse(key, value, range_text(low, high));
  return result;
}

bool JsonReader::boolean(const std::string& key, std::optional<bool> fallback) {
  note(key, "true or false", fallback ? Json(*fallback) : Json());
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  if (!value || !value->is_boolean()) refuse(key, value, "true or false");
  return value->get<bool>();
}

std::string JsonReader::text(const std::string& key, std::optional<std::string> fallback) {
  note(key, "a text", fallback ? Json(*fallback) : Json());
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  if (!value || !value->is_string()) refuse(key, value, "a text");
  return value->get<std::string>();
}

std::string JsonReader::choice(const std::string& key, const std::vector<std::string>& allowed,
                               std::optional<std::string> fallback) {
  note(key, "one of them", fallback ? Json(*fallback) : Json(), allowed);
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  const std::string word = value && value->is_string() ? value->get<std::string>() : "";
  if (!value || !value->is_string() || std::find(allowed.begin(), allowed.end(), word) == allowed.end()) {
    const std::string near = nearest_word(word, allowed);
    refuse(key, value, concat("one of \"", joined(allowed, "\", \""), "\""),
           near.empty() ? "" : concat("; did you mean \"", near, "\"?"));
  }
  return word;
}

std::optional<int64_t> JsonReader::optional_integer(const std::string& key, int64_t low, int64_t high) {
  if (!find(key)) note(key, range_text(low, high));
  if (!find(key)) return std::nullopt;
  return integer(key, low, high);
}

std::optional<int64_t> JsonReader::integer_or_null(const std::string& key, int64_t low, int64_t high,
                                                   int64_t fallback) {
  if (!says(key) || has(key)) return integer(key, low, high, fallback);
  find(key);
  note(key, range_text(low, high) + ", or null", fallback);
  return std::nullopt;
}

std::optional<double> JsonReader::optional_number(const std::string& key, double low, double high) {
  if (!find(key)) note(key, range_text(low, high));
  if (!find(key)) return std::nullopt;
  return number(key, low, high);
}

Json JsonReader::object(const std::string& key) {
  note(key, "an object { ... }");
  const Json* value = find(key);
  if (!value) return Json::object();
  if (!value->is_object()) refuse(key, value, "an object { ... }");
  return *value;
}

std::optional<std::string> JsonReader::optional_text(const std::string& key) {
  return find(key) ? std::optional(text(key)) : std::nullopt;
}

const Json& JsonReader::any(const std::string& key) {
  static const Json kNull;
  const Json* value = find(key);
  return value ? *value : kNull;
}

void JsonReader::finish() const {
  for (const auto& [key, value] : object_->items()) {
    if (asked_.count(key)) continue;
    const std::vector<std::string> known(asked_.begin(), asked_.end());
    const std::string near = nearest_word(key, known);
    std::string hint = concat("; did you mean \"", near, "\"?");
    if (near.empty()) {
      hint = known.empty() ? "; no keys are allowed here" : "; allowed:";
      for (const auto& word : known) hint += (hint.back() == ':' ? " \"" : ", \"") + word + "\"";
    }
    fail("unknown key ", excerpt(Json(key)), " (value ", excerpt(value), ")", hint);
  }
}

// Optimal string alignment distance.
size_t edit_distance(const std::string& one, const std::string& other) {
  const size_t n = one.size(), m = other.size();
  std::vector<std::vector<size_t>> cost(n + 1, std::vector<size_t>(m + 1));
  for (size_t i = 0; i <= n; ++i) {
    for (size_t j = 0; j <= m; ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const size_t replace = cost[i - 1][j - 1] + (one[i - 1] == other[j - 1] ? 0 : 1);
      cost[i][j] = std::min({replace, cost[i - 1][j] + 1, cost[i][j - 1] + 1});
      if (i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[n][m];
}

std::string nearest_word(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;  // more than a third of the letters wrong is too far
  for (const auto& candidate : known) {
    const size_t distance = edit_distance(word, candidate);  // "dmi" is one edit from "dim"
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace cortado
