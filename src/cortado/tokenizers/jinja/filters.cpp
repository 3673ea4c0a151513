#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "cortado/base/utf8.h"
#include "cortado/tokenizers/jinja/renderer.h"

namespace cortado::jinja {
namespace {

int64_t whole_option(const Arguments& given, size_t place, std::string_view name, int64_t fallback) {
  const Value* value = given.get(place, name);
  if (!value) return fallback;
  const auto integer = as_integer(*value);
  if (!integer) fail("'", type_name(*value), "' object cannot be interpreted as an integer");
  return *integer;
}

bool flag_option(const Arguments& given, size_t place, std::string_view name, bool fallback) {
  const Value* value = given.get(place, name);
  return value ? truth(*value) : fallback;
}

Value filter_default(Renderer&, const Value& value, const Arguments& given) {
  given.expect("default", {"default_value", "boolean"}, 0);
  const Value* fallback = given.get(0, "default_value");
  const bool missing = is_undefined(value) || (flag_option(given, 1, "boolean", false) && !truth(value));
  return !missing ? value : fallback ? *fallback : constant("");
}

Value filter_tojson(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonForm form;
  form.ascii = flag_option(given, 0, "ensure_ascii", false);
  form.sorted = flag_option(given, 3, "sort_keys", false);
  if (const Value* indent = given.get(1, "indent"); indent && !is_none(*indent)) {
    const Text* text = as_text(*indent);
    const int64_t width = text ? 0 : std::clamp<int64_t>(whole_option(given, 1, "indent", 0), 0, 1000);
    form.indent = text ? text->bytes() : std::string(static_cast<size_t>(width), ' ');
    form.item = ",";
  }
  if (const Value* separators = given.get(2, "separators"); separators && !is_none(*separators)) {
    const List* list = as_list(*separators);
    const bool two = list && list->items.size() == 2 && as_text(list->items[0]) && as_text(list->items[1]);
    if (!two) fail("tojson: separators must be two texts");
    form.item = as_text(list->items[0])->bytes();
    form.key = as_text(list->items[1])->bytes();
  }
  return run.string(to_json(value, form, run.budget()));
}

Value filter_replace(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("replace", {"old", "new", "count"}, 2);
  Arguments texts;
  for (size_t i = 0; i < 2; ++i) texts.all.push_back(run.string(run.text(*given.get(i, i == 0 ? "old" : "new"))));
  const Value* count = given.get(2, "count");
  if (count && !is_none(*count)) texts.all.push_back(*count);
  return call_method(run, run.string(run.text(value)), "replace", texts);
}

Value filter_trim(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("trim", {"chars"}, 0);
  return call_method(run, run.string(run.text(value)), "strip", given);
}

// Jinja's titles begin after these marks, unlike Python's.
Value filter_title(Renderer& run, const Value& value, const Arguments&) {
  bool begins = true;
  return run.string(run.text(value).mapped([&](std::string_view piece) {
    std::string out;
    for (size_t at = 0; at < piece.size();) {
      const Utf8Char c = utf8_char(piece.substr(at));
      const auto code = static_cast<utf8proc_int32_t>(c.code);
      append_utf8(out, static_cast<uint32_t>(begins ? utf8proc_toupper(code) : utf8proc_tolower(code)));
      begins = is_space(c.code) || c.code == '-' || c.code == '(' || c.code == '{' || c.code == '[' || c.code == '<';
      at += static_cast<size_t>(std::max(c.length, 1));
    }
    return out;
  }));
}

Value filter_indent(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("indent", {"width", "first", "blank"}, 0);
  const Value* width = given.get(0, "width");
  const Text* text = width ? as_text(*width) : nullptr;
  const int64_t spaces = text ? 0 : std::clamp<int64_t>(whole_option(given, 0, "width", 4), 0, 1000);
  const std::string indent = text ? text->bytes() : std::string(static_cast<size_t>(spaces), ' ');
  Text given_text = run.text(value);
  given_text.write("\n");  // as Jinja does, so that a last line end makes an empty line
  const bool blank = flag_option(given, 2, "blank", false);
  Text out;
  Budget::Growth growth(run.budget());
  bool first = true;
  for (const Text& line : split_lines(given_text, false)) {
    growth.add(indent.size() + line.size());
    if (!first) out.write("\n");
    if (first ? flag_option(given, 1, "first", false) : blank || !line.empty()) out.write(indent);
    out.append(line);
    first = false;
  }
  return run.string(std::move(out));
}

std::optional<double> parsed_number(const std::string& text) {
  const std::string trimmed = strip(Text(text), true, true).bytes();
  const char* begin = trimmed.data() + (trimmed.starts_with('+') ? 1 : 0);
  double number = 0;
  const auto [end, error] = std::from_chars(begin, trimmed.data() + trimmed.size(), number);
  return error == std::errc() && end == trimmed.data() + trimmed.size() ? std::optional(number) : std::nullopt;
}

Value filter_int(Renderer&, const Value& value, const Arguments& given) {
  given.expect("int", {"default", "base"}, 0);
  const Value* fallback = given.get(0, "default");
  const Value other = fallback ? *fallback : Value(int64_t{0});
  if (const auto integer = as_integer(value)) return *integer;
  std::optional<double> number = as_number(value);
  if (const Text* text = as_text(value)) {
    std::string digits = strip(*text, true, true).bytes();
    const int64_t base = whole_option(given, 1, "base", 10);
    if (base < 2 || base > 36) fail("int: the base must be from 2 to 36");
    if (base == 16 && (digits.starts_with("0x") || digits.starts_with("0X"))) digits.erase(0, 2);
    const char* begin = digits.data() + (digits.starts_with('+') ? 1 : 0);
    int64_t whole = 0;
    const auto [end, error] = std::from_chars(begin, digits.data() + digits.size(), whole, static_cast<int>(base));
    if (error == std::errc() && end == digits.data() + digits.size()) return whole;
    number = parsed_number(text->bytes());
  }
  if (!number || !(std::abs(*number) < 9e18)) return other;
  return static_cast<int64_t>(*number);
}

Value filter_float(Renderer&, const Value& value, const Arguments& given) {
  given.expect("float", {"default"}, 0);
  const Value* fallback = given.get(0, "default");
  auto number = as_number(value);
  if (const Text* text = as_text(value)) number = parsed_number(text->bytes());
  return number ? Value(*number) : fallback ? *fallback : Value(0.0);
}

Value filter_abs(Renderer&, const Value& value, const Arguments&) {
  if (const auto* number = as<double>(value)) return std::abs(*number);
  const auto integer = as_integer(value);
  if (!integer || *integer == INT64_MIN) fail("bad operand type for abs(): '", type_name(value), "'");
  return std::abs(*integer);
}

Value filter_round(Renderer&, const Value& value, const Arguments& given) {
  given.expect("round", {"precision", "method"}, 0);
  const auto number = as_number(value);
  if (!number) fail("type ", type_name(value), " doesn't define __round__ method");
  const auto places = static_cast<int>(std::clamp<int64_t>(whole_option(given, 0, "precision", 0), -300, 300));
  const Value* method = given.get(1, "method");
  const std::string how = method && as_text(*method) ? as_text(*method)->bytes() : "common";
  if (how == "common") {
    char text[800];
    std::snprintf(text, sizeof text, "%.*f", std::clamp(places, 0, 300), *number);
    if (places >= 0) return std::strtod(text, nullptr);
  }
  const double scale = std::pow(10.0, places), scaled = *number * scale;
  return (how == "ceil" ? std::ceil(scaled) : how == "floor" ? std::floor(scaled) : std::nearbyint(scaled)) / scale;
}

template <bool again>
Value filter_escape(Renderer& run, const Value& value, const Arguments&) {
  Text text = run.text(value);
  if (again) text.set_html(false);
  return run.string(escape(text));
}

Value filter_safe(Renderer& run, const Value& value, const Arguments&) {
  Text text = run.text(value);
  text.set_html(true);
  return run.string(std::move(text));
}

Value filter_format(Renderer& run, const Value& value, const Arguments& given) {
  if (given.named.empty()) {
    return run.string(percent_format(run, run.text(value), run.heap().list(given.all, List::Kind::kTuple)));
  }
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [name, item] : given.named) items.emplace_back(constant(name), item);
  return run.string(percent_format(run, run.text(value), run.heap().dict(std::move(items))));
}

Value filter_center(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("center", {"width"}, 0);
  return call_method(run, run.string(run.text(value)), "center", {{whole_option(given, 0, "width", 80)}, {}});
}

Value filter_truncate(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("truncate", {"length", "killwords", "end", "leeway"}, 0);
  const Text text = run.text(value);
  const Value* mark = given.get(2, "end");
  const Text end = mark ? run.text(*mark) : Text("...");
  const int64_t most = whole_option(given, 0, "length", 255), leeway = whole_option(given, 3, "leeway", 5);
  if (character_count(text.bytes()) <= most + leeway) return run.string(text);
  const int64_t kept = most - character_count(end.bytes());
  if (kept < 0) fail("truncate: the length is shorter than the end");
  Text out = text.part(0, character_starts(text.bytes())[static_cast<size_t>(kept)]);
  const size_t space = out.bytes().rfind(' ');
  if (!flag_option(given, 1, "killwords", false) && space != std::string::npos) out.truncate(space);
  out.append(end);
  return run.string(std::move(out));
}

Value filter_wordcount(Renderer& run, const Value& value, const Arguments&) {
  const std::string text = run.text(value).bytes();
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(std::string_view(text).substr(at));
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c.code));
    const bool letter = category <= UTF8PROC_CATEGORY_LO || c.code == '_' ||
                        (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
    if (letter && category != UTF8PROC_CATEGORY_CN && !inside) ++words;
    inside = letter && category != UTF8PROC_CATEGORY_CN;
    at += static_cast<size_t>(std::max(c.length, 1));
  }
  return words;
}

Value filter_urlencode(Renderer& run, const Value& value, const Arguments&) {
  if (!as_text(value)) fail("urlencode is supported for texts only");
  return run.string(as_text(value)->mapped([](std::string_view piece) {
    static constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~/";
    std::string out;
    char code[4];
    for (const char c : piece) {
      std::snprintf(code, sizeof code, "%%%02X", static_cast<unsigned char>(c));
      out += kPlain.find(c) == std::string_view::npos ? std::string(code) : std::string(1, c);
    }
    return out;
  }));
}

template <Text (*change)(const Text&)>
Value change_filter(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("the filter", {}, 0);
  return run.string(change(run.text(value)));
}

Value filter_string(Renderer& run, const Value& value, const Arguments&) {
  return as_text(value) ? value : run.string(run.text(value));
}

Value filter_attr(Renderer& run, const Value& value, const Arguments& given) {
  given.expect("attr", {"name"}, 1);
  const Text* name = as_text(given.all.at(0));
  if (!name) fail("attr: expected a name");
  return as_dict(value) && !has_method(value, name->bytes())
             ? Value(Undefined{"'dict object' has no attribute '" + name->bytes() + "'"})
             : run.attribute(value, name->bytes());
}

}  // namespace

Filter find_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> filters = {
      {"default", filter_default},     {"d", filter_default},
      {"tojson", filter_tojson},       {"replace", filter_replace},
      {"trim", filter_trim},           {"title", filter_title},
      {"indent", filter_indent},       {"int", filter_int},
      {"float", filter_float},         {"abs", filter_abs},
      {"round", filter_round},         {"escape", filter_escape<false>},
      {"e", filter_escape<false>},     {"forceescape", filter_escape<true>},
      {"format", filter_format},       {"center", filter_center},
      {"truncate", filter_truncate},   {"wordcount", filter_wordcount},
      {"urlencode", filter_urlencode}, {"upper", change_filter<upper>},
      {"lower", change_filter<lower>}, {"capitalize", change_filter<capitalize>},
      {"string", filter_string},       {"safe", filter_safe},
      {"attr", filter_attr},
  };
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace cortado::jinja
