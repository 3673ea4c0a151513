#include "cortado/serve/text_formats.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace cortado {

const std::string* pattern_of_format(const std::string& format) {
  static const std::string kDay =
      "(?:(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-"
      "(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31))";
  static const std::string kTime = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?";
  static const std::string kZone = "(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])";
  static const std::string kName = "[a-z0-9]+(?:-[a-z0-9]+)*", kNames = kName + "(?:\\." + kName + ")*";
  static const std::string kByte = "(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])";
  static const std::vector<std::pair<std::string, std::string>> kPatterns = {
      {"date", kDay},
      {"time", kTime + kZone},
      {"date-time", kDay + "T" + kTime + kZone},
      {"email", "[A-Za-z0-9]+(?:[._+-][A-Za-z0-9]+)*@" + kName + "(?:\\." + kName + ")*\\.[a-z]{2,8}"},
      {"hostname", kNames},
      {"uri", "https?://" + kNames + "(?::[1-9][0-9]{0,3})?(?:/[A-Za-z0-9._~-]+)*/?(?:\\?[A-Za-z0-9._~=&-]+)?"},
      {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
      {"duration", "P(?:[0-9]{1,4}D)?T(?:[0-9]{1,2}H)?(?:[0-9]{1,2}M)?[0-9]{1,2}(?:\\.[0-9]{1,6})?S|P[0-9]{1,4}D"},
      {"ipv4", kByte + "(?:\\." + kByte + "){3}"}};
  const auto found =
      std::find_if(kPatterns.begin(), kPatterns.end(), [&](const auto& it) { return it.first == format; });
  return found == kPatterns.end() ? nullptr : &found->second;
}

bool is_built_in(const std::string& format) {
  static const std::set<std::string> kFormats = {
      "email", "date",    "time",          "date-time",    "duration",     "ipv4",
      "ipv6",  "uuid",    "uri-reference", "uri-template", "json-pointer", "relative-json-pointer",
      "uri",   "hostname"};
  return kFormats.contains(format);
}

}  // namespace cortado
