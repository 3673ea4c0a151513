#include "cortado/mechanisms/registry.h"

#include <algorithm>
#include <map>

#include "cortado/base/error.h"
#include "cortado/mechanisms/mamba2/mixer.h"
#include "cortado/mechanisms/sliding_window/mixer.h"
#include "cortado/mechanisms/softmax/mixer.h"

namespace cortado {

// Mechanisms without a header.
extern const Mechanism kLinear, kPerformer, kLatte, kMacchiato, kRgLru, kRetention, kLightning, kGla, kHgrn2, kMamba,
    kMamba3, kRwkv4, kRwkv4ChannelMix, kRwkv6, kRwkv7, kRwkv7ChannelMix, kDeltaNet, kGatedDeltaNet, kKda, kGdn2,
    kGatedDeltaProduct, kAbc, kGatedSlotAttention, kBlurryWindow, kLolcats, kLola, kExactChunked, kLongformer,
    kParallelHybrid, kSerialHybrid, kGriffin, kGatedShortConv, kH3, kS5, kMega, kLuna, kLinformer, kPerceiver, kMla;

const std::vector<const Mechanism*>& mechanisms() {
  static const std::vector<const Mechanism*> all = {
      &kSoftmax,             //
      &kSlidingWindow,       //
      &kMla,                 //
      &kLinear,              //
      &kPerformer,           //
      &kLatte,               //
      &kMacchiato,           //
      &kRgLru,               //
      &kRetention,           //
      &kLightning,           //
      &kGla,                 //
      &kHgrn2,               //
      &kMamba,               //
      &kMamba2,              //
      &kMamba3,              //
      &kRwkv4,               //
      &kRwkv4ChannelMix,     //
      &kRwkv6,               //
      &kRwkv7,               //
      &kRwkv7ChannelMix,     //
      &kDeltaNet,            //
      &kGatedDeltaNet,       //
      &kKda,                 //
      &kGdn2,                //
      &kGatedDeltaProduct,   //
      &kAbc,                 //
      &kGatedSlotAttention,  //
      &kBlurryWindow,        //
      &kLolcats,             //
      &kLola,                //
      &kExactChunked,        //
      &kLongformer,          //
      &kParallelHybrid,      //
      &kSerialHybrid,        //
      &kGriffin,             //
      &kGatedShortConv,      //
      &kH3,                  //
      &kS5,                  //
      &kMega,                //
      &kLuna,                //
      &kLinformer,           //
      &kPerceiver,           //
  };
  return all;
}

std::string kernels_of(const Mechanism& mechanism, std::span<const Primitive> primitives) {
  std::map<std::string_view, std::string> kinds;  // "Highway" -> "gated_scan, short_conv"
  for (const Primitive& primitive : primitives) {
    const auto& called = mechanism.primitives;
    if (primitive.kernel.empty() || std::find(called.begin(), called.end(), primitive.name) == called.end()) continue;
    std::string& names = kinds[primitive.kernel];
    names += concat(names.empty() ? "" : ", ", primitive.name);
  }
  std::string text;
  for (const auto& [kind, names] : kinds) text += concat(text.empty() ? "" : "; ", kind, ": ", names);
  return text.empty() ? "ATen" : text;
}

const Mechanism& find_mechanism(const std::string& name) {
  std::vector<std::string> names;
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->name == name) return *mechanism;
    names.push_back(mechanism->name);
  }
  const std::string nearest = nearest_word(name, names);
  throw InputError(concat("unknown mixer \"", name, "\"",
                          nearest.empty() ? std::string("; `cortado mechanisms` lists them")
                                          : concat("; did you mean \"", nearest, "\"?")));
}

std::shared_ptr<Mixer> make_mixer(const Json& settings, const MixerContext& context, const std::string& place) {
  JsonReader reader(settings, place);
  const Mechanism& mechanism = find_mechanism(reader.text("mixer"));
  fail_input_if(context.causal && !mechanism.causal, "[", place, "] ", mechanism.name, " has no causal form");
  fail_input_if(!context.causal && !mechanism.bidirectional, "[", place, "] ", mechanism.name,
                " has no bidirectional form");
  auto mixer = mechanism.make(reader, context);
  reader.finish();
  return mixer;
}

}  // namespace cortado
