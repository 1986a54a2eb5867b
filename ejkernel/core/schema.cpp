#include "ejkernel/core/schema.h"

namespace ejk {

std::string_view name(ParamType type) {
  switch (type) {
    case ParamType::boolean:
      return "bool";
    case ParamType::integer:
      return "int";
    case ParamType::real:
      return "float";
    case ParamType::text:
      return "string";
    case ParamType::integers:
      return "ints";
  }
  return "?";
}

}  // namespace ejk
