#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "cortado/base/utf8.h"
#include "cortado/tokenizers/jinja/value.h"

namespace cortado::jinja {
namespace {

std::string hexadecimal(const char* form, uint32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, form, code);
  return text;
}

bool is_printable(uint32_t code) {
  if (code == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

// Calls `escape` for every character and joins what it gives; an empty result keeps the character.
template <typename Escape>
Text escaped(const Text& text, const Escape& escape) {
  return text.mapped([&](std::string_view piece) {
    std::string out;
    for (size_t at = 0; at < piece.size();) {
      const Utf8Char c = utf8_char(piece.substr(at));
      const auto size = static_cast<size_t>(std::max(c.length, 1));
      const std::string with = c.length > 0 ? escape(c.code) : "";
      out += with.empty() ? piece.substr(at, size) : std::string_view(with);
      at += size;
    }
    return out;
  });
}

// Python's repr() of a text.
Text quoted(const Text& text) {
  const bool twice = text.bytes().find('\'') != std::string::npos && text.bytes().find('"') == std::string::npos;
  const std::string mark = twice ? "\"" : "'";
  Text out(mark);
  out.append(escaped(text, [&](uint32_t code) -> std::string {
    if (code == '\\') return "\\\\";
    if (code == '\n') return "\\n";
    if (code == '\r') return "\\r";
    if (code == '\t') return "\\t";
    if (code == '\'' && !twice) return "\\'";
    if (is_printable(code)) return "";
    return hexadecimal(code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
  }));
  out.write(mark);
  return out;
}

Text json_text(const Text& text, bool ascii) {
  Text out("\"");
  out.append(escaped(text, [&](uint32_t code) -> std::string {
    switch (code) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    if (code < 0x20 || (ascii && code >= 0x7F && code < 0x10000)) {
      return code == 0x7F ? "" : hexadecimal("\\u%04x", code);
    }
    if (!ascii || code < 0x10000) return "";
    code -= 0x10000;
    return hexadecimal("\\u%04x", 0xD800 + (code >> 10)) + hexadecimal("\\u%04x", 0xDC00 + (code & 0x3FF));
  }));
  out.append("\"");
  return out;
}

class Repr {
 public:
  explicit Repr(Budget& budget) : budget_(budget) {}

  void add(const Value& value) {
    const Budget::Level level(budget_);
    budget_.take(16);
    if (const Text* text = as_text(value)) {
      budget_.take(text->size());
      return out.append(quoted(*text));
    }
    if (const List* list = as_list(value)) return add_list(*list);
    if (const Dict* dict = as_dict(value)) return add_dict(*dict);
    if (is_undefined(value)) return out.write("Undefined");
    if (as<Namespace*>(value) || as<const Function*>(value) || as<Loop*>(value)) {
      fail("the chat template prints a ", type_name(value), ", which has no text");
    }
    out.append(to_text(value, budget_));
  }

  Text out;

 private:
  void add_list(const List& list) {
    if (list.kind == List::Kind::kGenerator || list.kind == List::Kind::kView || list.kind == List::Kind::kRange) {
      fail("the chat template prints a sequence that has no text");
    }
    const bool tuple = list.kind == List::Kind::kTuple;
    out.append(tuple ? "(" : "[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out.write(", ");
      add(list.items[i]);
    }
    if (tuple && list.items.size() == 1) out.write(",");
    out.write(tuple ? ")" : "]");
  }

  void add_dict(const Dict& dict) {
    out.write("{");
    for (size_t i = 0; i < dict.items.size(); ++i) {
      if (i > 0) out.write(", ");
      add(dict.items[i].first);
      out.write(": ");
      add(dict.items[i].second);
    }
    out.write("}");
  }

  Budget& budget_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonForm& form, Budget& budget) : form_(form), budget_(budget) {}

  void add(const Value& value) {
    const Budget::Level level(budget_);
    budget_.take(16);
    if (const Text* text = as_text(value)) {
      budget_.take(text->size());
      return out.append(json_text(*text, form_.ascii));
    }
    if (const auto* flag = as<bool>(value)) return out.write(*flag ? "true" : "false");
    if (is_none(value)) return out.write("null");
    if (const List* list = as_list(value); list && list->kind <= List::Kind::kTuple) return add_list(*list);
    if (const Dict* dict = as_dict(value)) return add_dict(*dict);
    if (!as_number(value)) fail("Object of type ", type_name(value), " is not JSON serializable");
    const auto* number = as<double>(value);
    if (number && !std::isfinite(*number))
      return out.write(std::isnan(*number) ? "NaN" : *number > 0 ? "Infinity" : "-Infinity");
    out.append(to_text(value, budget_));
  }

  Text out;

 private:
  void new_line() {
    if (!form_.indent) return;
    out.write("\n");
    for (int64_t i = 0; i < depth_; ++i) {
      budget_.take(form_.indent->size());
      out.write(*form_.indent);
    }
  }

  template <typename Items, typename Add>
  void add_items(const Items& items, const char* open, const char* close, const Add& add_item) {
    out.write(open);
    if (!items.empty()) {
      ++depth_;
      bool first = true;
      for (const auto& item : items) {
        if (!std::exchange(first, false)) out.write(form_.item);
        new_line();
        add_item(item);
      }
      --depth_;
      new_line();
    }
    out.write(close);
  }

  void add_list(const List& list) {
    add_items(list.items, "[", "]", [&](const Value& item) { add(item); });
  }

  void add_dict(const Dict& dict) {
    auto items = dict.items;
    if (form_.sorted) {
      std::ranges::stable_sort(items,
                               [&](const auto& a, const auto& b) { return compare(a.first, b.first, budget_) < 0; });
    }
    add_items(items, "{", "}", [&](const auto& item) {
      if (as_text(item.first)) {
        add(item.first);
      } else {
        out.append("\"");
        add(item.first);
        out.append("\"");
      }
      out.write(form_.key);
      add(item.second);
    });
  }

  const JsonForm& form_;
  Budget& budget_;
  int64_t depth_ = 0;
};

}  // namespace

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
  const std::string_view shortest(text, static_cast<size_t>(end - text));
  const size_t e = shortest.find('e');
  const int exponent = std::atoi(std::string(shortest.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  std::string digits(shortest.substr(0, e));
  const std::string sign = digits.starts_with('-') ? "-" : "";
  std::erase_if(digits, [](char c) { return c == '-' || c == '.'; });
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

Text to_text(const Value& value, Budget& budget) {
  if (const Text* text = as_text(value)) return *text;
  if (is_undefined(value)) return {};
  if (is_none(value)) return "None";
  if (const auto* flag = as<bool>(value)) return *flag ? "True" : "False";
  if (const auto* integer = as<int64_t>(value)) return std::to_string(*integer);
  if (const auto* number = as<double>(value)) return number_text(*number);
  Repr repr(budget);
  repr.add(value);
  return std::move(repr.out);
}

Text to_json(const Value& value, const JsonForm& form, Budget& budget) {
  JsonWriter writer(form, budget);
  writer.add(value);
  return std::move(writer.out);
}

}  // namespace cortado::jinja
