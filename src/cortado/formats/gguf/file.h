// GGUF, the model files of llama.cpp (versions 2 and 3): metadata and tensors, read from a memory map.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/files.h"
#include "cortado/base/json.h"

namespace cortado {

using at::Tensor;

// One tensor type. README.md has the layouts.
struct GgmlType {
  uint32_t id;
  const char* name;
  int64_t values;  // in a block; 1: plain numbers
  int64_t bytes;   // of a block
  // Of one block, float32; null for plain numbers.
  void (*decode)(const uint8_t* block, float* values);
  at::ScalarType plain = at::kFloat;  // the type of plain numbers
};

// Null: not a type that is read here.
const GgmlType* find_ggml_type(uint32_t id);
// "Q2_K" or "type 99": for messages about types that are not read.
std::string ggml_type_name(uint32_t id);
// "F32, F16, ...": those that are.
std::string ggml_type_names();

// `bytes` as a tensor of its own: plain numbers in their type, blocks as float32. The bytes must be the shape's: whole
// blocks along the last dimension.
Tensor decode_ggml(const GgmlType& type, const std::vector<int64_t>& shape, std::string_view bytes);

// A name or text of a file for a message: in quotes, short, on one line, whatever its bytes.
std::string printable(std::string_view text);

enum class GgufKind : uint32_t { kUint32 = 4, kFloat32 = 6, kText = 8, kList = 9, kFloat64 = 12 };  // some of them

// A metadata value where it lies in the file.
struct GgufValue {
  GgufKind kind;  // a list's: of its elements
  bool list = false;
  uint64_t count = 1;      // elements
  std::string_view bytes;  // of all elements
};

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // in torch's order: the last dimension lies together
  const GgmlType* type;
  std::string_view bytes;
};

// A file, checked as a whole when it is opened: counts, lengths, offsets, types, names given twice, tensors that
// overlap or reach beyond the end. Anything wrong is an InputError of one line that names the file, and no memory is
// asked for that the bytes of the file do not justify.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path);
  // Of bytes that outlive it; `name` is for messages.
  GgufFile(std::string_view bytes, std::string name) : name_(std::move(name)) { parse(bytes); }

  const std::string& name() const { return name_; }

  bool has(const std::string& key) const { return metadata_.contains(key); }
  // The metadata that are no lists, to be read as strictly as JSON (base/json.h).
  JsonReader metadata() const;
  // Lists, empty where absent. The texts are views of the file.
  std::vector<std::string_view> texts(const std::string& key) const;
  std::vector<double> numbers(const std::string& key, bool whole = false) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(const std::string& name) const;
  // Plain numbers in their own type, blocks as float32; the tensor owns its memory.
  static Tensor read(const GgufTensor& tensor) { return decode_ggml(*tensor.type, tensor.shape, tensor.bytes); }

  // "[path] ..." as one InputError, the parts joined, where it is bad.
  template <typename... Parts>
  void fail_if(bool bad, const Parts&... parts) const {
    fail_input_if(bad, "[gguf] ", name_, " ", parts...);
  }

 private:
  void parse(std::string_view bytes);
  void parse_tensors(class GgufCursor& cursor, uint64_t count, std::string_view bytes);
  const GgufValue& list(const std::string& key) const;

  std::string name_;
  std::shared_ptr<const MappedFile> map_;
  std::map<std::string, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t> places_;  // in tensors_
};

// Whether the file begins as a GGUF file does. Missing or unreadable: InputError.
bool is_gguf(const std::string& path);

}  // namespace cortado
