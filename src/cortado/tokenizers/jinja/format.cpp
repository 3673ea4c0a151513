#include <algorithm>
#include <cstdio>

#include "cortado/tokenizers/jinja/renderer.h"

namespace cortado::jinja {
namespace {

constexpr size_t kWidest = 1000;

// What stands between % or : and the letter of a format, e.g. "-08.3".
struct Field {
  std::string flags;
  std::optional<size_t> width, precision;
  char letter = 's';
};

size_t read_size(std::string_view form, size_t& at) {
  size_t size = 0;
  while (at < form.size() && form[at] >= '0' && form[at] <= '9' && size <= kWidest)
    size = 10 * size + static_cast<size_t>(form[at++] - '0');
  if (size > kWidest) fail("a format is too wide");
  return size;
}

Field read_field(std::string_view form, size_t& at) {
  Field field;
  while (at < form.size() && std::string_view("-+ #0").find(form[at]) != std::string_view::npos)
    field.flags += form[at++];
  if (at < form.size() && form[at] >= '1' && form[at] <= '9') field.width = read_size(form, at);
  if (at < form.size() && form[at] == '.') field.precision = read_size(form, ++at);
  return field;
}

std::string number_field(const Field& field, const Value& value) {
  const bool whole = std::string_view("diuxXo").find(field.letter) != std::string_view::npos;
  const auto number = as_number(value);
  if (!number) fail("%", field.letter, " format: a real number is required, not ", type_name(value));
  std::string form = "%" + field.flags;
  if (field.width) form += std::to_string(*field.width);
  if (field.precision) form += "." + std::to_string(*field.precision);
  form += whole ? std::string("ll") + field.letter : std::string(1, field.letter);
  char text[2 * kWidest + 400];
  if (whole) {
    const auto integer = as_integer(value);
    std::snprintf(text, sizeof text, form.c_str(),
                  static_cast<long long>(integer ? *integer : static_cast<int64_t>(std::clamp(*number, -9e18, 9e18))));
  } else {
    std::snprintf(text, sizeof text, form.c_str(), *number);
  }
  return text;
}

Text text_field(const Field& field, Text text, bool left) {
  const auto starts = character_starts(text.bytes());
  if (field.precision && *field.precision < starts.size() - 1) text.truncate(starts[*field.precision]);
  const auto size = static_cast<size_t>(character_count(text.bytes()));
  const std::string pad(field.width && *field.width > size ? *field.width - size : 0, ' ');
  Text out;
  if (!left) out.write(pad);
  out.append(text);
  if (left) out.write(pad);
  return out;
}

Text repr(Renderer& run, const Value& value) {
  if (!as_text(value)) return to_text(value, run.budget());
  const Value list = run.heap().list({value});
  const Text whole = to_text(list, run.budget());
  return whole.part(1, whole.size() - 1);  // without the brackets
}

Text formatted(Renderer& run, const Field& field, const Value& value, bool left) {
  if (field.letter == 's') return text_field(field, run.text(value), left);
  if (field.letter == 'r') return text_field(field, repr(run, value), left);
  return number_field(field, value);
}

}  // namespace

Text percent_format(Renderer& run, const Text& form, const Value& values) {
  const List* tuple = as_list(values);
  if (tuple && tuple->kind != List::Kind::kTuple) tuple = nullptr;
  const Dict* dict = as_dict(values);
  size_t next = 0, done = 0;
  Text out;
  Budget::Growth growth(run.budget());
  const std::string& bytes = form.bytes();
  for (size_t at = bytes.find('%'); at != std::string::npos; at = bytes.find('%', done)) {
    out.append(form.part(done, at++));
    const Value* value = nullptr;
    if (dict && at < bytes.size() && bytes[at] == '(') {
      const size_t end = bytes.find(')', at);
      if (end == std::string::npos) fail("incomplete format key");
      value = dict->find(std::string_view(bytes).substr(at + 1, end - at - 1));
      if (!value) fail("the format has a key that the values lack");
      at = end + 1;
    }
    Field field = read_field(bytes, at);
    if (at == bytes.size()) fail("incomplete format");
    field.letter = bytes[at];
    done = at + 1;
    if (field.letter == '%') {
      out.write("%");
      continue;
    }
    if (std::string_view("srdiuxXofFeEgG").find(field.letter) == std::string_view::npos) {
      fail("unsupported format character '", field.letter, "'");
    }
    if (!value) {
      const size_t count = tuple ? tuple->items.size() : 1;
      if (next >= count) fail("not enough arguments for format string");
      value = tuple ? &tuple->items[next] : &values;
      ++next;
    }
    const Text made = formatted(run, field, *value, field.flags.find('-') != std::string::npos);
    growth.add(made.size());
    out.append(made);
  }
  if (!dict && next < (tuple ? tuple->items.size() : 1)) fail("not all arguments converted during string formatting");
  out.append(form.part(done, form.size()));
  return out;
}

namespace {

// The field between braces: a name or a number, !r or !s, and a format after a colon.
Text brace_field(Renderer& run, const std::string& inside, const Arguments& given, size_t& next) {
  const size_t end = std::min(inside.find_first_of("!:"), inside.size());
  const std::string name = inside.substr(0, end);
  if (name.find_first_of(".[{") != std::string::npos) fail("format() with attributes is not supported");
  const bool number = !name.empty() && name.size() < 6 && name.find_first_not_of("0123456789") == std::string::npos;
  const size_t place = name.empty() ? next++ : number ? static_cast<size_t>(std::stoul(name)) : SIZE_MAX;
  const Value* value = given.get(place, place == SIZE_MAX ? name : "");
  if (!value) fail("format() lacks the argument '", name, "'");
  Field field;
  size_t at = end;
  const bool quotes = inside.compare(at, 2, "!r") == 0;
  if (quotes || inside.compare(at, 2, "!s") == 0) at += 2;
  bool right = as_number(*value).has_value() && !as<bool>(*value);
  if (at < inside.size() && inside[at] == ':') {
    ++at;
    if (at < inside.size() && (inside[at] == '<' || inside[at] == '>')) right = inside[at++] == '>';
    field = read_field(inside, at);
    if (at < inside.size()) field.letter = inside[at++];
  }
  if (at < inside.size()) fail("format() does not support '", inside, "'");
  if (quotes) return text_field(field, repr(run, *value), !right);
  const bool plain = field.letter == 's' && !(field.precision && as<double>(*value));
  if (plain) return text_field(field, run.text(*value), !right);
  if (field.letter == 's') field.letter = 'g';
  if (std::string_view("dxXofFeEgG").find(field.letter) == std::string_view::npos)
    fail("format() does not support '", inside, "'");
  return number_field(field, *value);
}

}  // namespace

Text brace_format(Renderer& run, const Text& form, const Arguments& given) {
  Text out;
  Budget::Growth growth(run.budget());
  const std::string& bytes = form.bytes();
  size_t next = 0, done = 0;
  for (size_t at = bytes.find_first_of("{}"); at != std::string::npos; at = bytes.find_first_of("{}", done)) {
    out.append(form.part(done, at));
    if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
      out.append(form.part(at, at + 1));
      done = at + 2;
      continue;
    }
    const size_t end = bytes[at] == '{' ? bytes.find('}', at) : std::string::npos;
    if (end == std::string::npos) fail("a brace of a format has no partner");
    const Text made = brace_field(run, bytes.substr(at + 1, end - at - 1), given, next);
    growth.add(made.size());
    out.append(made);
    done = end + 1;
  }
  out.append(form.part(done, form.size()));
  return out;
}

}  // namespace cortado::jinja
