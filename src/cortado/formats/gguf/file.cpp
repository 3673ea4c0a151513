#include "cortado/formats/gguf/file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cortado/base/error.h"

namespace cortado {

std::string printable(std::string_view text) {
  constexpr size_t kLongest = 80;
  const bool cut = text.size() > kLongest;
  const std::string shown =
      Json(std::string(text.substr(0, kLongest))).dump(-1, ' ', true, Json::error_handler_t::replace);
  return cut ? shown + "..." : shown;
}

namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kLongestName = 65535;
constexpr uint32_t kMostDimensions = 4;
constexpr uint64_t kMostValues = uint64_t{1} << 48;  // per tensor
constexpr uint64_t kAlignment = 32;
// The fewest bytes of a metadata entry (length of the name, type, value) and of a tensor's description (length of the
// name, number of dimensions, one size, type, offset). A name has no minimum here.
constexpr uint64_t kSmallestEntry = 8 + 4 + 1, kSmallestTensor = 8 + 4 + 8 + 4 + 8;

template <typename T>
T number_at(std::string_view bytes, uint64_t i = 0) {
  T value{};
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
Json json_at(std::string_view bytes, uint64_t i) {
  return number_at<T>(bytes, i);
}
Json flag_at(std::string_view bytes, uint64_t i) { return bytes[i] != 0; }
Json first_text(std::string_view bytes, uint64_t /*i*/) { return std::string(bytes.substr(8)); }

// Indexed by GgufKind: bytes per element (0 for texts and lists), and a function that returns element i (for texts only
// the first).
struct Kind {
  uint64_t size;
  Json (*element)(std::string_view bytes, uint64_t i);
};
constexpr Kind kKinds[] = {{1, json_at<uint8_t>},  {1, json_at<int8_t>},  {2, json_at<uint16_t>}, {2, json_at<int16_t>},
                           {4, json_at<uint32_t>}, {4, json_at<int32_t>}, {4, json_at<float>},    {1, flag_at},
                           {0, first_text},        {0, first_text},       {8, json_at<uint64_t>}, {8, json_at<int64_t>},
                           {8, json_at<double>}};

const Kind& kind_of(const GgufValue& value) { return kKinds[static_cast<uint32_t>(value.kind)]; }
Json element(const GgufValue& value, uint64_t i) { return kind_of(value).element(value.bytes, i); }

}  // namespace

// A reading position in the file. Each step is checked against the bytes that are left.
class GgufCursor {
 public:
  GgufCursor(const GgufFile& file, std::string_view bytes) : file_(file), bytes_(bytes) {}

  template <typename... Parts>
  void fail_if(bool bad, const Parts&... parts) const {
    file_.fail_if(bad, "is damaged or no GGUF file: ", parts...);
  }

  uint64_t place() const { return place_; }
  uint64_t left() const { return bytes_.size() - place_; }

  std::string_view take(uint64_t count, const char* what) {
    fail_if(count > left(), what, " of ", count, " bytes at byte ", place_, " of ", bytes_.size());
    const std::string_view taken = bytes_.substr(place_, count);
    place_ += count;
    return taken;
  }

  template <typename T>
  T number(const char* what) {
    return number_at<T>(take(sizeof(T), what));
  }

  std::string_view text(const char* what) { return take(number<uint64_t>(what), what); }

  std::string name(const char* what) {
    const std::string_view text = this->text(what);
    fail_if(text.empty() || text.size() > kLongestName, what, " of ", text.size(), " bytes");
    return std::string(text);
  }

  GgufKind kind() {
    const auto kind = number<uint32_t>("a value's type");
    fail_if(kind > static_cast<uint32_t>(GgufKind::kFloat64), "a value of type ", kind);
    return static_cast<GgufKind>(kind);
  }

  GgufValue value() {
    GgufValue value{.kind = kind(), .bytes = {}};
    if (value.kind == GgufKind::kList) {
      value.list = true;
      value.kind = kind();
      fail_if(value.kind == GgufKind::kList, "a list of lists");
      value.count = number<uint64_t>("a list's length");
    }
    const uint64_t size = kind_of(value).size, smallest = size ? size : 8;
    fail_if(value.count > left() / smallest, "a list of ", value.count, " elements at byte ", place_, " of ",
            bytes_.size());
    if (size) {
      value.bytes = take(value.count * size, "a value");
    } else {
      const uint64_t begin = place_;
      for (uint64_t i = 0; i < value.count; ++i) text("a text");
      value.bytes = bytes_.substr(begin, place_ - begin);
    }
    return value;
  }

 private:
  const GgufFile& file_;
  std::string_view bytes_;
  uint64_t place_ = 0;
};

namespace {

// Reads a tensor's name, shape and type. Sets `offset` (from the start of the data section) and `size` in bytes.
GgufTensor read_tensor_info(const GgufFile& file, GgufCursor& cursor, uint64_t& offset, uint64_t& size) {
  GgufTensor tensor{cursor.name("a tensor's name"), {}, nullptr, {}};
  const std::string shown = printable(tensor.name);
  const auto dimensions = cursor.number<uint32_t>("a tensor's dimensions");
  cursor.fail_if(dimensions < 1 || dimensions > kMostDimensions, "tensor ", shown, " has ", dimensions, " dimensions");
  uint64_t values = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto extent = cursor.number<uint64_t>("a tensor's size");
    cursor.fail_if(extent < 1 || extent > kMostValues / values, "tensor ", shown, " has an impossible size");
    values *= extent;
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
  }
  const auto id = cursor.number<uint32_t>("a tensor's type");
  tensor.type = find_ggml_type(id);
  cursor.fail_if(!tensor.type && ggml_type_name(id).starts_with("type "), "tensor ", shown, " has ",
                 ggml_type_name(id));
  // A valid type that Cortado does not decode: the file is not damaged, so the message differs.
  file.fail_if(!tensor.type, "has tensor ", shown, " of type ", ggml_type_name(id),
               ", which is not supported; supported: ", ggml_type_names());
  cursor.fail_if(tensor.shape.back() % tensor.type->values != 0, "tensor ", shown, " has rows of ", tensor.shape.back(),
                 " values, ", tensor.type->name, " needs a multiple of ", tensor.type->values);
  size = values / static_cast<uint64_t>(tensor.type->values) * static_cast<uint64_t>(tensor.type->bytes);
  offset = cursor.number<uint64_t>("a tensor's offset");
  return tensor;
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : name_(path), map_(std::make_shared<const MappedFile>(path)) {
  parse(map_->text());
  add_parts();
}

void GgufFile::parse(std::string_view bytes) {
  GgufCursor cursor(*this, bytes);
  cursor.fail_if(bytes.substr(0, kMagic.size()) != kMagic, "it does not begin with \"GGUF\"");
  cursor.take(kMagic.size(), "the magic");
  const auto version = cursor.number<uint32_t>("the version");
  fail_if(version != 2 && version != 3, "is of GGUF version ", version, "; versions 2 and 3 are supported");
  const auto tensors = cursor.number<uint64_t>("the number of tensors");
  const auto entries = cursor.number<uint64_t>("the number of metadata entries");
  cursor.fail_if(entries > cursor.left() / kSmallestEntry, entries, " metadata entries in ", bytes.size(), " bytes");
  for (uint64_t i = 0; i < entries; ++i) {
    const std::string key = cursor.name("a metadata key");
    cursor.fail_if(has(key), "metadata key ", printable(key), " appears twice");
    metadata_.emplace(key, cursor.value());
  }
  parse_tensors(cursor, tensors, bytes);
}

void GgufFile::parse_tensors(GgufCursor& cursor, uint64_t count, std::string_view bytes) {
  cursor.fail_if(count > cursor.left() / kSmallestTensor, count, " tensors in ", bytes.size(), " bytes");
  struct Place {
    uint64_t offset, size;
    size_t tensor;
  };
  std::vector<Place> order;
  for (uint64_t i = 0; i < count; ++i) {
    Place place{0, 0, i};
    tensors_.push_back(read_tensor_info(*this, cursor, place.offset, place.size));
    const std::string& name = tensors_.back().name;
    cursor.fail_if(!places_.emplace(name, i).second, "tensor ", printable(name), " appears twice");
    order.push_back(place);
  }
  const auto alignment = static_cast<uint64_t>(metadata().integer("general.alignment", 1, 1 << 20, kAlignment));
  cursor.fail_if(!std::has_single_bit(alignment), "its alignment is ", alignment, ", which is no power of two");
  const uint64_t begin = (cursor.place() + alignment - 1) / alignment * alignment;
  cursor.fail_if(count > 0 && begin > bytes.size(), "it ends before the tensors' data");
  std::sort(order.begin(), order.end(), [](const Place& a, const Place& b) { return a.offset < b.offset; });
  uint64_t end = 0;
  for (const Place& place : order) {
    GgufTensor& tensor = tensors_[place.tensor];
    const std::string shown = printable(tensor.name);
    cursor.fail_if(place.offset % alignment != 0, "tensor ", shown, " starts at byte ", place.offset,
                   ", which is no multiple of ", alignment);
    cursor.fail_if(place.offset < end, "tensor ", shown, " overlaps the one before it");
    const uint64_t room = bytes.size() - begin;
    cursor.fail_if(place.offset > room || place.size > room - place.offset, "tensor ", shown, " needs bytes ",
                   place.offset, " to ", place.offset + place.size, " of ", room, " bytes of data");
    tensor.bytes = bytes.substr(begin + place.offset, place.size);
    end = place.offset + place.size;
  }
}

const GgufTensor* GgufFile::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &tensors_[found->second];
}

JsonReader GgufFile::metadata() const {
  Json object = Json::object();
  for (const auto& [key, value] : metadata_) object[key] = value.list ? Json("a list") : element(value, 0);
  return {object, name_ + " (metadata)"};
}

const GgufValue& GgufFile::list(const std::string& key) const {
  static const GgufValue none{.kind = GgufKind::kText, .list = true, .count = 0, .bytes = {}};
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return none;
  fail_if(!found->second.list, "metadata ", printable(key), ": expected a list");
  return found->second;
}

std::vector<std::string_view> GgufFile::texts(const std::string& key) const {
  const GgufValue& found = list(key);
  fail_if(found.count > 0 && found.kind != GgufKind::kText, "metadata ", printable(key), ": expected texts");
  std::vector<std::string_view> all;
  all.reserve(found.count);
  uint64_t place = 0;
  for (uint64_t i = 0; i < found.count; ++i) {
    const auto length = number_at<uint64_t>(found.bytes.substr(place));
    all.push_back(found.bytes.substr(place + 8, length));
    place += 8 + length;
  }
  return all;
}

std::vector<double> GgufFile::numbers(const std::string& key, bool whole) const {
  const GgufValue& found = list(key);
  const std::string wanted = concat("metadata ", printable(key), ": expected ", whole ? "whole " : "", "numbers");
  std::vector<double> all;
  for (uint64_t i = 0; i < found.count; ++i) {
    const Json number = element(found, i);
    fail_if(whole ? !number.is_number_integer() : !number.is_number(), wanted);
    all.push_back(number.get<double>());
  }
  return all;
}

std::vector<bool> GgufFile::flags(const std::string& key) const {
  const GgufValue& found = list(key);
  std::vector<bool> all;
  for (uint64_t i = 0; i < found.count; ++i) {
    const Json flag = element(found, i);
    fail_if(!flag.is_boolean(), "metadata ", printable(key), ": expected true or false");
    all.push_back(flag.get<bool>());
  }
  return all;
}

Tensor GgufFile::read(const GgufTensor& tensor, int64_t index) {
  const std::vector<int64_t> shape(tensor.shape.begin() + 1, tensor.shape.end());
  const size_t size = tensor.bytes.size() / static_cast<size_t>(tensor.shape.front());
  return decode_ggml(*tensor.type, shape, tensor.bytes.substr(static_cast<size_t>(index) * size, size));
}

bool is_gguf(const std::string& path) { return MappedFile(path).text().substr(0, kMagic.size()) == kMagic; }

}  // namespace cortado
