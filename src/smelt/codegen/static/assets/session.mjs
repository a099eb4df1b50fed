// Runs WebAssembly models of smelt. A section of the module, `smelt`, describes its inputs, outputs and state.

// The dtypes, by number, and the array of each. JavaScript has no array for some: those are given as their bits.
const arrays = {
  bool: "Uint8Array", uint8: "Uint8Array", int8: "Int8Array", int16: "Int16Array", int32: "Int32Array",
  int64: "BigInt64Array", float16: "Uint16Array", bfloat16: "Uint16Array", float32: "Float32Array",
  float64: "Float64Array", complex64: "Float32Array", complex128: "Float64Array", uint16: "Uint16Array",
  uint32: "Uint32Array", uint64: "BigUint64Array", float8_e4m3fn: "Uint8Array", float8_e5m2: "Uint8Array",
};
const names = Object.keys(arrays);
const dtypes = new Map(names.map((dtype) => [dtype, { array: arrays[dtype], width: dtype.startsWith("complex") ? 2 : 1 }]));
const align = (n) => Math.ceil(n / 64) * 64;
const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

export async function load(source, memoryBytes = 1 << 24) {
  const bytes = source instanceof URL || typeof source === "string" ? await read(source) : source;
  const module = bytes instanceof WebAssembly.Module ? bytes : await WebAssembly.compile(bytes);
  const [description] = WebAssembly.Module.customSections(module, "smelt");
  if (description === undefined) throw new Error("this module is no model: save_static of smelt 0.1 or later writes models");
  const pow = (a, b) => (a === 1 || (a === -1 && Math.abs(b) === Infinity) ? 1 : a ** b); // as in C
  const instance = await WebAssembly.instantiate(module, { env: { pow } });
  return new Session(JSON.parse(new TextDecoder().decode(description)), instance.exports, memoryBytes);
}

async function read(source) {
  const inNode = globalThis.process?.versions?.node !== undefined;
  const isPath = inNode && typeof source === "string" && !/^[a-z][a-z+.-]+:/i.test(source); // else it is an address
  if (isPath || String(source).startsWith("file:")) {
    const { readFile } = await import("node:fs/promises");
    return readFile(isPath ? source : new URL(source));
  }
  const answer = await fetch(source);
  if (!answer.ok) throw new Error(`cannot load ${source}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

// A number or a boolean as the only element of an array of its dtype.
function scalar(what, { dtype }, value) {
  const { array } = dtypes.get(dtype);
  const wrong = () => new Error(`${what} is ${typeof value} ${value}, and must be ${dtype}`);
  if (dtype === "bool") {
    if (typeof value !== "boolean") throw wrong();
    return Uint8Array.of(value ? 1 : 0);
  }
  if (typeof value === "boolean" || /^(float16|bfloat16|float8|complex)/.test(dtype)) throw wrong();
  if (dtype.startsWith("float")) {
    if (typeof value !== "number") throw wrong();
    return globalThis[array].of(value);
  }
  if (typeof value === "number" && !Number.isSafeInteger(value)) throw wrong();
  const made = globalThis[array].of(array.startsWith("Big") ? BigInt(value) : Number(value));
  if (BigInt(made[0]) !== BigInt(value)) throw wrong();
  return made;
}

// The elements and sizes of a tensor, held against its dtype and rank.
function tensor(what, described, value, rank) {
  const { dtype, choices = [] } = described;
  if (choices.length) {
    const named = choices.map((each) => JSON.stringify(each)).join(", ");
    if (!choices.includes(value)) throw new Error(`${what} must be one of ${named}`);
    return { data: BigInt64Array.of(BigInt(choices.indexOf(value))), shape: [] };
  }
  if (["number", "bigint", "boolean"].includes(typeof value)) {
    if (rank) throw new Error(`${what} is a ${typeof value}, and must be { data, shape } with ${rank} dimensions`);
    return { data: scalar(what, described, value), shape: [] };
  }
  const { array, width } = dtypes.get(dtype);
  const data = value?.data;
  if (!ArrayBuffer.isView(data) || data[Symbol.toStringTag] !== array) {
    const plain = Array.isArray(data) ? "a plain array" : typeof data;
    const found = ArrayBuffer.isView(data) ? data[Symbol.toStringTag] : plain;
    throw new Error(`${what}.data is ${found}, and must be a ${array} (${dtype})`);
  }
  const shape = value.shape ?? (rank === 0 ? [] : rank === 1 ? [data.length / width] : undefined);
  if (!shape) throw new Error(`${what}.shape is missing: it has ${rank} dimensions`);
  if (shape.length !== rank) throw new Error(`${what} has ${shape.length} dimensions, and must have ${rank}`);
  if (!shape.every((size) => Number.isSafeInteger(size) && size >= 0)) {
    throw new Error(`${what}.shape is [${shape}]: sizes are whole numbers`);
  }
  if (data.length !== width * product(shape)) {
    throw new Error(`${what}.data has ${data.length / width} elements, and its shape [${shape}] ${product(shape)}`);
  }
  return { data, shape: Array.from(shape) };
}

function named(values, names, what) {
  if (values === null || typeof values !== "object") throw new Error(`${what}: give an object with a value for each name`);
  const unknown = Object.keys(values).find((name) => !names.includes(name));
  if (unknown !== undefined) throw new Error(`there is no ${what} ${unknown}; choose from ${names.join(", ") || "none"}`);
}

function withValue(found) {
  if (found.shape.length === 0 && found.data.length === 1) {
    found.value = found.dtype === "bool" ? found.data[0] !== 0 : found.data[0];
  }
  return found;
}

// Calls visit(place of an element in memory, its number) for each element of a strided tensor.
function elements({ shape, strides }, visit) {
  const count = product(shape), index = shape.map(() => 0);
  for (let number = 0, place = 0; number < count; number++) {
    visit(place, number);
    for (let d = shape.length - 1; d >= 0; d--) {
      place += strides[d];
      if (++index[d] < shape[d]) break;
      place -= strides[d] * shape[d];
      index[d] = 0;
    }
  }
}

class Session {
  constructor(model, wasm, memoryBytes) {
    this.model = model;
    this.wasm = wasm;
    this.stride = 24 + 8 * model.rank; // bytes of a tensor's description
    this.session = align(wasm.__heap_base.value);
    this.stateAt = this.session + 64;
    this.tensors = this.stateAt + align(model.stateBytes);
    this.data = this.tensors + align((model.inputs.length + model.outputs.length) * this.stride);
    this.memoryBytes = memoryBytes;
    this.reserve(this.data + memoryBytes);
    this.reset();
  }

  reset() {
    this.wasm[`${this.model.name}_init`](this.session, this.stateAt, this.data, BigInt(this.memoryBytes));
  }

  reserve(end) {
    const pages = Math.ceil((end - this.wasm.memory.buffer.byteLength) / 65536);
    if (pages <= 0) return;
    try {
      this.wasm.memory.grow(pages);
    } catch {
      throw new Error(`the model needs ${end} bytes of memory, which this engine does not give`);
    }
  }

  run(given) {
    named(given, this.model.inputs.map(({ name }) => name), "input");
    let place = this.data;
    const inputs = this.model.inputs.map((each) => {
      const value = given[each.name];
      if (value === undefined || value === null) {
        if (!each.optional) throw new Error(`input ${each.name} is missing`);
        return null;
      }
      const found = { ...tensor(`input ${each.name}`, each, value, each.dims.length), at: place };
      place = align(place + Math.max(1, found.data.byteLength));
      return found;
    });
    const first = this.tensors + inputs.length * this.stride;
    for (let bytes = this.memoryBytes; ; ) {
      this.reserve(place + bytes);
      this.memoryBytes = bytes;
      const view = new DataView(this.wasm.memory.buffer);
      view.setUint32(this.session + 4, place, true);
      view.setBigInt64(this.session + 8, BigInt(bytes), true);
      inputs.forEach((input, i) => this.put(view, this.tensors + i * this.stride, input));
      this.model.outputs.forEach((_, i) => view.setUint32(first + i * this.stride, 0, true));
      const code = this.wasm[`${this.model.name}_run`](this.session, this.tensors, first);
      if (code === 0) return this.results(first);
      if (code !== this.model.noMemory) throw new Error(this.message(code, inputs));
      bytes = Math.max(2 * bytes, Number(view.getBigInt64(this.session + 16, true))); // state is as it was
    }
  }

  put(view, at, input) {
    view.setUint32(at, input ? input.at : 0, true);
    if (!input) return;
    const { data, shape } = input;
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    new Uint8Array(view.buffer, input.at, bytes.length).set(bytes);
    shape.forEach((size, d) => view.setBigInt64(at + 24 + 8 * d, BigInt(size), true));
  }

  message(code, inputs) {
    if (code !== this.model.wrongSize) return this.model.errors[code] ?? `${this.model.name}_run returned ${code}`;
    const view = new DataView(this.wasm.memory.buffer);
    const place = view.getInt32(this.session + 24, true), dimension = view.getInt32(this.session + 28, true);
    const { name, dims } = this.model.inputs[place], size = inputs[place].shape[dimension];
    if (dimension < 0 || dimension >= dims.length) return `input ${name} is too large`;
    const [low, high, called] = dims[dimension];
    const head = `input ${name}: dimension ${dimension}${called ? ` ${called}` : ""} is ${size}`;
    if (size < low || size > high) return `${head}, and must be ${low === high ? low : `from ${low} to ${high}`}`;
    return called ? `${head}, and ${called} is another size elsewhere` : `input ${name} is too large`;
  }

  results(first) {
    const view = new DataView(this.wasm.memory.buffer);
    return Object.fromEntries(this.model.outputs.map((name, i) => {
      const at = first + i * this.stride, data = view.getUint32(at, true), number = view.getInt32(at + 20, true);
      if (number < 0) return [name, null];
      const dtype = names[number];
      const copy = view.buffer.slice(data, data + Number(view.getBigInt64(at + 8, true)));
      const length = view.getInt32(at + 16, true);
      const shape = Array.from({ length }, (_, d) => Number(view.getBigInt64(at + 24 + 8 * d, true)));
      return [name, withValue({ data: new globalThis[arrays[dtype]](copy), shape, dtype })];
    }));
  }

  // Elements of state as they are in memory; complex numbers are two of them.
  stateElements(each) {
    const { array, width } = dtypes.get(each.dtype), kind = globalThis[array];
    const span = each.shape.reduce((end, size, d) => end + (size - 1) * each.strides[d], 1);
    return new kind(this.wasm.memory.buffer, this.stateAt + each.offset, product(each.shape) ? span * width : 0);
  }

  state() {
    return Object.fromEntries(this.model.state.map((each) => {
      const { array, width } = dtypes.get(each.dtype), own = this.stateElements(each);
      const data = new globalThis[array](width * product(each.shape));
      elements(each, (place, number) => {
        for (let k = 0; k < width; k++) data[width * number + k] = own[width * place + k];
      });
      return [each.name, withValue({ data, shape: [...each.shape], dtype: each.dtype })];
    }));
  }

  loadState(given) {
    named(given, this.model.state.map(({ name }) => name), "state");
    const taken = this.model.state.filter(({ name }) => name in given).map((each) => {
      const found = tensor(`state ${each.name}`, each, given[each.name], each.shape.length);
      if (found.shape.some((size, d) => size !== each.shape[d])) {
        throw new Error(`state ${each.name} has the shape [${each.shape}], not [${found.shape}]`);
      }
      return [each, found.data];
    });
    for (const [each, data] of taken) {
      const { width } = dtypes.get(each.dtype), own = this.stateElements(each);
      elements(each, (place, number) => {
        for (let k = 0; k < width; k++) own[width * place + k] = data[width * number + k];
      });
    }
  }
}
