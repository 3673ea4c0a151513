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

// A tensor type of GGML. README.md describes the layouts.
struct GgmlType {
  uint32_t id;
  const char* name;
  int64_t values;  // per block; 1 for plain numbers
  int64_t bytes;   // per block
  // Decodes one block to float32; null for plain numbers.
  void (*decode)(const uint8_t* block, float* values);
  at::ScalarType plain = at::kFloat;  // element type of plain numbers
};

// Returns null for a type that Cortado does not decode.
const GgmlType* find_ggml_type(uint32_t id);
// The type's name for messages, such as "Q2_K", or "type 99" if the id is unknown.
std::string ggml_type_name(uint32_t id);
// The names of all types that Cortado decodes: "F32, F16, ...".
std::string ggml_type_names();

// Decodes `bytes` to a new tensor: plain numbers keep their type, blocks become float32. The number of bytes must match
// `shape`, with whole blocks along the last dimension.
Tensor decode_ggml(const GgmlType& type, const std::vector<int64_t>& shape, std::string_view bytes);

// Formats a name or text from a file for a message: quoted, at most 80 bytes of it, on one line, whatever the bytes
// are.
std::string printable(std::string_view text);

// only the ones that the code names
enum class GgufKind : uint32_t { kUint32 = 4, kFloat32 = 6, kText = 8, kList = 9, kFloat64 = 12 };

// A metadata value: a view of its bytes in the file.
struct GgufValue {
  GgufKind kind;  // for a list, the kind of its elements
  bool list = false;
  uint64_t count = 1;      // number of elements
  std::string_view bytes;  // all elements
};

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // in torch's order: the last dimension is contiguous
  const GgmlType* type;
  std::string_view bytes;
};

// A GGUF file, or a model that is split into several. The constructor checks all of it: counts, lengths, offsets,
// types, duplicate names, and tensors that overlap or reach beyond the end. It throws an InputError of one line that
// names the file, and never allocates more than the size of the file justifies.
class GgufFile {
 public:
  // `path` of a split model (NAME-00001-of-00003.gguf) is its first part; the tensors of all parts are there.
  explicit GgufFile(const std::string& path);
  // Reads from `bytes`, which must outlive this object; `name` is for messages.
  GgufFile(std::string_view bytes, std::string name) : name_(std::move(name)) { parse(bytes); }

  const std::string& name() const { return name_; }

  bool has(const std::string& key) const { return metadata_.contains(key); }
  // All metadata except lists, for reading with the strict checks of JsonReader (base/json.h).
  JsonReader metadata() const;
  // Metadata lists; empty if the key is absent. The texts are views of the file. InputError for elements of another
  // type.
  std::vector<std::string_view> texts(const std::string& key) const;
  std::vector<double> numbers(const std::string& key, bool whole = false) const;
  std::vector<bool> flags(const std::string& key) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(const std::string& name) const;
  // Decodes the tensor: plain numbers keep their type, blocks become float32. The result owns its memory.
  static Tensor read(const GgufTensor& tensor) { return decode_ggml(*tensor.type, tensor.shape, tensor.bytes); }
  // Decodes the tensor at `index` of the first dimension.
  static Tensor read(const GgufTensor& tensor, int64_t index);

  // Throws an InputError "[gguf] PATH ..." with the joined parts if `bad`.
  template <typename... Parts>
  void fail_if(bool bad, const Parts&... parts) const {
    fail_input_if(bad, "[gguf] ", name_, " ", parts...);
  }

 private:
  void parse(std::string_view bytes);
  void parse_tensors(class GgufCursor& cursor, uint64_t count, std::string_view bytes);
  const GgufValue& list(const std::string& key) const;
  void add_parts();
  std::shared_ptr<const GgufFile> open_part(const std::string& path, int64_t number, int64_t count) const;

  std::string name_;
  std::shared_ptr<const MappedFile> map_;
  std::map<std::string, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t> places_;                // index into tensors_
  std::vector<std::shared_ptr<const GgufFile>> parts_;  // the other files of a split model
};

// The files of a model by its first one's name: NAME-00001-of-00003.gguf and the others that exist; other names: itself.
std::vector<std::string> gguf_parts(const std::string& path);

// Whether the file begins with "GGUF". InputError if it is missing or unreadable.
bool is_gguf(const std::string& path);

}  // namespace cortado
