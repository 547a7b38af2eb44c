// Images of the turn that is being written: chosen, dropped or pasted, and shown small.

const KINDS = ["image/png", "image/jpeg", "image/webp"];

const asUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(new Error(`${file.name}: cannot be read`));
  reader.readAsDataURL(file);
});

export function thumbnail(url, name) {
  const image = document.createElement("img");
  image.src = url;
  image.alt = name;
  return image;
}

export class Images {
  // `container` shows them; `refuse` is called with the error of a file that is no image.
  constructor(container, refuse) {
    Object.assign(this, { container, refuse, urls: [] });
  }

  // Files are chosen by a button, dropped anywhere, or pasted where no text comes with them.
  listen(button, input, text) {
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", async () => {
      await this.add([...input.files]);
      input.value = ""; // the same file again is a change, too
    });
    document.addEventListener("dragover", (event) => {
      if (event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
    document.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
    text.addEventListener("paste", (event) => {
      const { files, types } = event.clipboardData;
      if (!files.length || types.includes("text/plain")) return;
      event.preventDefault();
      this.add([...files]);
    });
  }

  async add(files) {
    for (const file of files) {
      try {
        if (!KINDS.includes(file.type)) throw new Error(`${file.name}: not a PNG, JPEG or WebP file`);
        this.#show(await asUrl(file), file.name);
      } catch (error) {
        this.refuse(error);
      }
    }
  }

  // Return all of them, and forget them: the next turn has none of them.
  take() {
    const urls = this.urls;
    this.urls = [];
    this.container.replaceChildren();
    return urls;
  }

  #show(url, name) {
    const button = document.createElement("button");
    button.type = "button";
    button.title = `Leave out ${name}`;
    button.append(thumbnail(url, name));
    button.addEventListener("click", () => {
      this.urls.splice([...this.container.children].indexOf(button), 1);
      button.remove();
    });
    this.container.append(button);
    this.urls.push(url);
  }
}
