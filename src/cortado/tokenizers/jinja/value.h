// Values of a template: Python's, as far as chat templates use them.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/tokenizers/jinja/error.h"
#include "cortado/tokenizers/jinja/text.h"

namespace cortado::jinja {

struct List;
struct Dict;
struct Namespace;
struct Function;
struct Loop;

struct Undefined {
  std::string why;  // the message if it is used
};
struct None {};
using String = std::shared_ptr<const Text>;

using Value = std::variant<Undefined, None, bool, int64_t, double, String, List*, const Dict*, Namespace*,
                           const Function*, Loop*>;

// A sequence. Python's kinds differ in how they print, whether they have a length, and whether they can be read twice.
struct List {
  enum class Kind { kList, kTuple, kRange, kView, kGenerator };
  Kind kind = Kind::kList;
  std::vector<Value> items;
  bool read = false;  // a generator that has been read is empty
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in the order of insertion
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, const Value& value);
};

// What {% set ns.x = ... %} can change.
struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
  Value* find(std::string_view name);
};

// The variable `loop` of a {% for %}.
struct Loop {
  std::vector<Value> items;
  size_t at = 0;
  int64_t depth = 1;
  std::optional<std::vector<Value>> changed = {};  // the last arguments of loop.changed
};

// The arguments of a call.
struct Arguments {
  std::vector<Value> all;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at a place or of a name; null if it is not given.
  const Value* get(size_t place, std::string_view name) const;
  // Fails for more arguments than `names`, and for other names.
  void expect(const std::string& function, const std::vector<std::string_view>& names, size_t required) const;
};

class Renderer;

struct Function {
  std::string name;
  std::function<Value(Renderer&, const Arguments&)> call;
};

// Limits of one rendering, so that a stranger's template cannot occupy a server: steps (a node of the template, or some
// bytes or items that it moves), bytes of values and output, depth of nested expressions and calls.
class Budget {
 public:
  static constexpr int64_t kSteps = 20'000'000, kBytes = int64_t{64} << 20, kDepth = 1000;

  explicit Budget(size_t input_bytes) : bytes_left_(kBytes + 16 * static_cast<int64_t>(input_bytes)) {}
  void step(size_t count = 1) {
    if ((steps_left_ -= static_cast<int64_t>(count)) < 0) fail("the chat template takes too long");
  }
  void take(size_t bytes) {
    step(bytes / 64);
    if ((bytes_left_ -= static_cast<int64_t>(bytes)) < 0) fail("the chat template needs too much memory");
  }
  void give_back(size_t bytes) { bytes_left_ += static_cast<int64_t>(bytes); }

  // Bytes of a text that is being made: taken as it grows, given back at the end.
  class Growth {
   public:
    explicit Growth(Budget& budget) : budget_(budget) {}
    ~Growth() { budget_.give_back(bytes_); }
    Growth(const Growth&) = delete;
    Growth& operator=(const Growth&) = delete;
    void add(size_t bytes) {
      bytes_ += bytes;
      budget_.take(bytes);
    }

   private:
    Budget& budget_;
    size_t bytes_ = 0;
  };

  // One more level for as long as it exists.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      if (++budget_.depth_ > kDepth) {
        --budget_.depth_;
        fail("the chat template is nested too deep");
      }
    }
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  int64_t steps_left_ = kSteps, bytes_left_, depth_ = 0;
};

// Owns the containers of one rendering, which may refer to each other in circles. Texts are counted while they exist.
class Heap {
 public:
  explicit Heap(Budget& budget) : budget_(budget) {}

  Value string(Text text);
  Value list(std::vector<Value> items, List::Kind kind = List::Kind::kList);
  Value dict(std::vector<std::pair<Value, Value>> items);
  Value set_apart(Namespace space);
  Value function(Function function);
  Loop* loop(std::vector<Value> items);
  // Converts JSON. Its texts, and the keys of its objects, are typed by `source`; the server's own without one.
  Value from_json(const Json& json, std::optional<int32_t> source);

 private:
  Budget& budget_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> spaces_;
  std::deque<Function> functions_;
  std::deque<Loop> loops_;
};

template <typename T>
const T* as(const Value& value) {
  return std::get_if<T>(&value);
}
inline const Text* as_text(const Value& value) {
  const auto* string = as<String>(value);
  return string ? string->get() : nullptr;
}
inline List* as_list(const Value& value) {
  const auto* list = as<List*>(value);
  return list ? *list : nullptr;
}
inline const Dict* as_dict(const Value& value) {
  const auto* dict = as<const Dict*>(value);
  return dict ? *dict : nullptr;
}
inline bool is_undefined(const Value& value) { return as<Undefined>(value) != nullptr; }
inline bool is_none(const Value& value) { return as<None>(value) != nullptr; }
// A bool is a number, too.
std::optional<int64_t> as_integer(const Value& value);
std::optional<double> as_number(const Value& value);
Value constant(std::string text);  // a text of the template's own

std::string type_name(const Value& value);  // Python's
bool truth(const Value& value);
// These recurse into containers, so they count levels.
bool equal(const Value& a, const Value& b, Budget& budget);
int compare(const Value& a, const Value& b, Budget& budget);  // negative, 0, positive; fails for values without order
bool contains(const Value& container, const Value& item, Budget& budget);

// The values that a loop visits; fails if there are none. Reads a generator.
std::vector<Value> iterate(const Value& value, Heap& heap, Budget& budget);
int64_t length(const Value& value);

Text to_text(const Value& value, Budget& budget);  // Python's str()
std::string number_text(double value);             // Python's repr() of a float

struct JsonForm {
  bool ascii = false, sorted = false;
  std::optional<std::string> indent = {};
  std::string item = ", ", key = ": ";
};
Text to_json(const Value& value, const JsonForm& form, Budget& budget);

}  // namespace cortado::jinja
