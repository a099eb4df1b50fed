// Any model. `save_static` writes the types of one model beside it: load("…") as Session of model.d.mts.
export type Elements =
  | Uint8Array | Int8Array | Int16Array | Int32Array | BigInt64Array | Uint16Array
  | Float32Array | Float64Array | Uint32Array | BigUint64Array;
export type Inputs = Record<string, Given | number | bigint | boolean | string | null | undefined>;
export type Outputs = Record<string, Tensor | null>;
export type State = Record<string, Tensor>;
